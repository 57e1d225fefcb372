"""The HTML report of a run: `write_report_of`."""

import logging

from retool.runs.run_dir import RunDirectory

logger = logging.getLogger("retool.runs")


def write_report_of(directory: RunDirectory) -> None:
    """Writes `report.html`. A run that is complete does not fail for want of a page about it."""
    try:
        from retool.report.html import write_report

        write_report(directory.path)
    except Exception:
        logger.exception("The report of %s could not be written.", directory.path)
