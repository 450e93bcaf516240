"""Metrics of a running process: counts that the shell keeps, and the page that shows them.

`statistics` and `node` only count; `catalogue` names every metric; `page` writes the text and `endpoint`
serves it. Nothing here decides anything, and no pure module imports it: those keep counts of their own.
"""
