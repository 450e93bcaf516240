"""Runs the tasks of an ingest in the process of a test, without Spark."""

from __future__ import annotations

from metaquorum.pipeline.ingest.tasks import run_task
from metaquorum.pipeline.ingest.work import Task, TaskResult


def run_here(
    session: object, tasks: list[Task], show: object = None, watch: object = None
) -> list[TaskResult]:
    return [run_task(task) for task in tasks]
