"""`metaquorum log shell`: a debugger that steps a cluster through its log.

`session` is the whole shell without a terminal (text in, lines out), `commands` has its commands, and
`command` reads lines from a person or a pipe.
"""
