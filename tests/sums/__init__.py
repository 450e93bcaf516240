"""What every log tool answers about many logs, one sum per node and tool: any change of an answer shows."""
