"""`metaquorum log shell`: a debugger that steps a cluster through its log.

`session` is the whole shell without a terminal (text in, lines out), its commands in `moving`,
`state_commands` and `past_commands`; `terminal` reads lines from a person or a pipe; `cursor` knows where the
shell is; `places` makes directories of an image.
"""
