"""`metaquorum log shell`: a debugger that steps a cluster through its log.

`session` is the whole shell without a terminal (text in, lines out), its commands in `moving`,
`state_commands` and `past_commands`; `command` reads lines from a person or a pipe.
"""
