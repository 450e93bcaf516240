"""The console: any moment of a metadata log in a browser, on a page with a time slider.

Stands on `metadata` and `storage`, like the log tools, and answers with the same functions. Starlette and
uvicorn are the extra `console`.
"""

if __name__ == "console":
    raise ImportError("import metaquorum.console: this folder is a part of the package metaquorum")
