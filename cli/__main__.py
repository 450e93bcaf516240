"""`python -m cli`: the `metaquorum` command without its script. Local clusters start their processes so."""

from cli.main import main

main(prog_name="metaquorum")
