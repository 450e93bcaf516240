"""`metaquorum log watch`: reports what goes wrong in a running cluster, as it is committed.

`incidents` says what is reported and which of it is new, `receivers` hands one report over, `delivery`
repeats that, `page` has the counters; `command` has the state file and puts them behind a followed log.
"""
