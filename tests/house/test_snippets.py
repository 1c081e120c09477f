"""Each block of code on a page is run by a test, or it is said here why not."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.support.pages import PAGES, blocks
from tests.support.source import ROOT


@dataclass(frozen=True)
class NotRun:
    """Why no test runs a block as it stands."""

    why: str


SHOWN = NotRun("it shows what comes, or how things lie, and is no program")
GETTING_STARTED = "tests/cli/test_pages.py::test_getting_started_"
CLOUDS = "tests/store/test_cloud_pages.py::test_the_"
STORAGE = "tests/storage/test_extending.py::test_a_command_reads_a_table_of_the_scheme"
FORMAT = "tests/sinks/test_extending.py::test_a_configuration_may_name_it"
HISTORY = "tests/sinks/test_history_page.py::test_the_page_on_histories"
KAFKA = "tests/kafka/test_pages.py::test_a_page_s_feed_reaches_the_broker"
MAKE = "tests/house/test_snippets.py::test_make_has_each_target_that_a_page_shows"
MOVING = "tests/cli/test_moving_pages.py::test_a_"
ONCE = "tests/daemon/test_once.py::test_"
SHARING = "tests/share_server/test_pages.py::test_the_pages_of_sharing_do_what_they_say"
SINK = "tests/sinks/test_pages.py::test_the_page_s_commands_do_what_it_says"
SPARK = "tests/spark/test_docs.py::test_"
MIRRORS = f"{SPARK}mirror_history_and_totals_follow_the_table"
TUTORIAL = "tests/kafka/test_tutorial.py::test_the_tutorial_does_what_it_says"
PYTHON_PAGE = "tests/api/test_page.py::test_the_programs_of_the_page_do_what_they_say"
VECTORS = "tests/sinks/test_postgres_vectors.py::test_the_page_on_vectors"
PACKAGES = "tests/spark/test_packages.py::test_nodes_without_the_package_read_a_table"
PIPELINE = "tests/spark/test_declarative.py::test_the_guides_pipeline_goes_on_where_it_ended"
BUCKET = "tests/sinks/nats_mirror/test_rows.py::test_the_page_s_reader_gets_and_watches_rows"
CATALOG = "tests/catalog/test_commands.py::test_"
EXAMPLES = NotRun("tests/kafka/test_examples.py runs each program, with topics of its own")
NO_CLUSTER = NotRun("it wants a cluster of Kubernetes, as the page says")

#: By page: how the first line of each block begins, and what runs the block.
SNIPPETS: dict[str, list[tuple[str, str | NotRun]]] = {
    "README.md": [
        ("make demo", MAKE),
        ("python", "tests/cli/test_readme.py::test_the_readme_s_example_prints_what_it_shows"),
        ('{"id"', "tests/cli/test_readme.py::test_the_readme_s_example_prints_what_it_shows"),
    ],
    "CONTRIBUTING.md": [("make check", MAKE)],
    "docs/architecture.md": [("reader", SHOWN)],
    "docs/azure.md": [
        ("tailer", f"{CLOUDS}commands_of_the_page_do_what_it_says"),
        ("[daemon]", f"{CLOUDS}configuration_of_the_page_runs"),
    ],
    "docs/choosing.md": [
        ("[feeds", "tests/cli/test_choosing_page.py::test_the_page_on_choosing"),
        ("tailer", "tests/cli/test_choosing_page.py::test_the_page_on_choosing"),
    ],
    "docs/configuration.md": [
        ("[daemon]", "tests/cli/test_pages.py::test_the_configuration_in_short"),
    ],
    "docs/connect.md": [
        ("[feeds", KAFKA),
        ("{", "tests/kafka/test_connect.py::test_a_copy_by_json_with_schemas"),
        ('"value.converter"', NotRun("Apicurio's registry is not started by the tests")),
    ],
    "docs/consumers.md": [
        ("[feeds", KAFKA),
        ("python", EXAMPLES),
        ("python", EXAMPLES),
    ],
    "docs/deployment.md": [
        ("helm", NotRun("it wants a cluster; tests/deploy/test_helm.py renders the chart")),
        ("kubectl", NO_CLUSTER),
    ],
    "docs/extending.md": [
        ('"""Tables', STORAGE),
        ("[project", STORAGE),
        ('"""Changes', FORMAT),
        ("[project", FORMAT),
    ],
    "docs/flink.md": [
        ("[feeds", KAFKA),
        ("CREATE", "tests/kafka/test_flink.py::test_its_table_is_the_snapshot"),
        ("CREATE", "tests/kafka/test_flink.py::test_its_table_of_upserts_is_the_snapshot"),
    ],
    "docs/formats.md": [
        ("[feeds", NotRun("tests/sinks/test_oversize.py tries these options with other targets")),
        ("import json", "tests/sinks/test_oversize.py::test_kafka_gets_what_fits"),
        ('{"id"', SHOWN),
        ('{"before"', SHOWN),
        ('{"specversion"', SHOWN),
        ("[feeds", NotRun("tests/sinks/test_registry.py speaks to a registry with these options")),
        ("syntax", "tests/sinks/test_protobuf.py::test_the_page_shows_a_schema_as_it_is"),
    ],
    "docs/gcs.md": [
        ("tailer", f"{CLOUDS}commands_of_the_page_do_what_it_says"),
        ("[daemon]", f"{CLOUDS}configuration_of_the_page_runs"),
    ],
    "docs/getting-started.md": [
        ("pip", f"{GETTING_STARTED}on_a_table_of_your_own"),
        ('{"order_id"', SHOWN),
        ("# tailer.toml", f"{GETTING_STARTED}with_the_daemon"),
        ("tailer", f"{GETTING_STARTED}with_the_daemon"),
        ("[feeds", f"{GETTING_STARTED}with_the_daemon"),
        ("[feeds", KAFKA),
        ("from", f"{GETTING_STARTED}from_python"),
    ],
    "docs/history.md": [
        ("# tailer.toml", HISTORY),
        ("tailer", HISTORY),
        *[("SELECT", HISTORY)] * 6,
    ],
    "docs/kafka.md": [
        ("[feeds", KAFKA),
        ("tailer", KAFKA),
        (
            "from",
            "tests/kafka/test_examples.py::test_the_snippet_shows_the_events_when_it_is_pasted",
        ),
        ("the sink's options", SHOWN),
    ],
    "docs/metrics.md": [
        ("pip", "tests/daemon/test_traces.py::test_each_batch_is_a_trace_of_its_read_write"),
    ],
    "docs/once.md": [
        ("tailer", f"{ONCE}runs_deliver_what_is_new_and_then_nothing"),
        ("orders", SHOWN),
        ("*/15", f"{ONCE}the_command_of_a_recipe_runs"),
        ("# /etc", f"{ONCE}the_command_of_a_recipe_runs"),
        ("# /etc", NotRun("a timer of systemd starts the unit above it")),
        ("apiVersion", f"{ONCE}the_command_of_a_recipe_runs"),
        ("from", f"{ONCE}the_command_of_a_recipe_runs"),
        ("import", f"{ONCE}the_handler_for_lambda_returns_or_raises"),
    ],
    "docs/operations.md": [
        ("curl", "tests/daemon/test_pages.py::test_a_feed_is_paused_and_started_by"),
        ('{"_notice"', SHOWN),
        ("tailer", "tests/cli/test_parked.py::test_the_commands_of_the_page"),
        (
            "tailer",
            "tests/verify/test_repair_rows.py::test_the_commands_of_the_page_repair_a_copy",
        ),
        (
            "tailer",
            "tests/verify/test_repair_rows.py::test_the_commands_of_the_page_repair_a_copy",
        ),
        ("2026", SHOWN),
    ],
    "docs/reliability.md": [
        ("make simulate", MAKE),
        ("coverage", NotRun("the figures beside it are from such a run, which takes minutes")),
    ],
    "docs/replace.md": [
        ("[feeds", f"{MOVING}feed_takes_over_and_gives_back_as_the_page_says"),
        ("tailer", f"{MOVING}feed_takes_over_and_gives_back_as_the_page_says"),
        ("query", SHOWN),
        ("tailer", f"{MOVING}feed_takes_over_and_gives_back_as_the_page_says"),
        ("tailer", f"{MOVING}loop_is_replaced_from_its_version_on"),
        ("[feeds", f"{MOVING}copy_is_built_beside_the_old_target"),
        ("tailer", f"{MOVING}copy_is_built_beside_the_old_target"),
    ],
    "docs/runbook.md": [
        ("curl", "tests/daemon/test_pages.py::test_a_feed_is_paused_and_started_by"),
        ("ALTER", f"{SPARK}the_runbook_s_statement_is_one_of_spark_s"),
    ],
    "docs/python.md": [("import", PYTHON_PAGE)] * 4,
    "docs/s3.md": [
        ("tailer", "tests/store/test_s3_page.py::test_the_commands_of_the_page_do_what_it_says"),
        ("{", "tests/store/test_s3.py::test_no_more_rights_are_needed_than_the_docs_say"),
    ],
    "docs/sharing-client.md": [
        ("tailer", SHARING),
        ("[feeds", SHARING),
        ("{", "tests/share_server/test_pages.py::test_the_profile_of_the_page_is_read"),
        ("[feeds", SHARING),
    ],
    "docs/sharing-server.md": [
        ("[share]", SHARING),
        ("tailer", SHARING),
        ("tailer", SHARING),
        ("import", SHARING),
        ("tailer", SHARING),
        ("tailer", SHARING),
    ],
    "docs/sinks/README.md": [
        ("tailer", "tests/cli/test_pages.py::test_the_sinks_are_listed"),
        ("pip", NotRun("tests/sinks/test_example_package.py does the same without the network")),
    ],
    "docs/sinks/http.md": [("# tailer.toml", SINK), ("export", SINK), ("POST", SHOWN)],
    "docs/sinks/nats.md": [
        ("# tailer.toml", SINK),
        ("pip", SINK),
        ("[feeds", BUCKET),
        ("import asyncio", BUCKET),
    ],
    "docs/sinks/postgres.md": [
        ("# tailer.toml", SINK),
        ("pip", SINK),
        ("[feeds.documents]", VECTORS),
        ("[feeds.to_embed]", VECTORS),
        ("BEGIN", VECTORS),
    ],
    "docs/spark.md": [
        ("from", f"{SPARK}the_source"),
        ("query", f"{SPARK}the_source"),
        ("CREATE TABLE", "tests/spark/test_source.py::test_the_statements_of_the_guide"),
        ("pyspark", NotRun("the session of the tests has the same packages and options")),
        ("from", f"{SPARK}the_frames_of_the_guide"),
        ("from", MIRRORS),
        ("before", f"{SPARK}the_frames_of_the_guide"),
        ("from", MIRRORS),
        ("account", NotRun("tests/spark/test_s3.py reads with these options, a table of its own")),
        ("tailer", NotRun("tests/spark/test_pipeline.py and test_yarn.py run such")),
        ("tailer", NotRun("tests/spark/test_pipeline.py moves offsets both ways")),
    ],
    "docs/spark-details.md": [
        ("from", MIRRORS),
        ("from", MIRRORS),
        ("printf", PACKAGES),
        ("pip", PACKAGES),
        ("# Dockerfile", NO_CLUSTER),
        ("spark-submit", NO_CLUSTER),
        ("spark-submit", NotRun("tests/spark/test_yarn.py runs it")),
        ("-Darrow", NotRun("options of Java; `python -m tests.benchmarks.bench_spark` has them")),
        ("#!/bin/sh", NotRun("`python -m tests.benchmarks.bench_spark --python` writes it")),
        ("cd", NotRun("`python -m tests.benchmarks.bench_spark --compiled` does it")),
        ("spark", NotRun("tests/spark/test_connect.py registers the source so, at a server")),
        ("name:", PIPELINE),
        ("from", PIPELINE),
        ("spark-pipelines", PIPELINE),
    ],
    "docs/tutorial.md": [
        ("cat", TUTORIAL),
        ("tailer", TUTORIAL),
        ("tailer", TUTORIAL),
        ("tailer", TUTORIAL),
        ("sleep", TUTORIAL),
        ("python", TUTORIAL),
        ("tailer", TUTORIAL),
        ("cat", TUTORIAL),
    ],
    "docs/use-cases.md": [
        ("tailer", f"{MOVING}use_is_a_whole_configuration"),
        *[("[feeds", f"{MOVING}use_is_a_whole_configuration")] * 6,
        ("tailer", "tests/cli/test_moving_pages.py::test_the_nightly_job_reads_a_range"),
        *[("[feeds", f"{MOVING}use_is_a_whole_configuration")] * 3,
        ("tailer", f"{MOVING}use_is_a_whole_configuration"),
        ("[feeds", f"{MOVING}use_is_a_whole_configuration"),
    ],
    "docs/unity-catalog.md": [
        ("export", f"{CATALOG}the_commands_of_the_page_run"),
        ("[catalogs", f"{CATALOG}a_check_says_which_catalog_and_which_account"),
        ("tailer", "tests/catalog/test_glue.py::test_the_commands_take_the_address"),
    ],
}


def runners(page: str) -> list[tuple[str, str | NotRun]]:
    """What runs the blocks of a page; all pages of sinks have one test."""
    if page.startswith("docs/sinks/") and page not in SNIPPETS:
        return [("# tailer.toml" if not at else "", SINK) for at in range(len(blocks(page)))]
    return SNIPPETS.get(page, [])


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in PAGES])
def test_each_block_is_run_or_has_its_reason(page: str) -> None:
    found, expected = blocks(page), runners(page)
    for block, (start, _) in zip(found, expected, strict=False):
        assert block.text.lstrip().startswith(start), f"{block}: nothing says what runs it"
    assert len(found) == len(expected), [str(block) for block in found[len(expected) :]]
    for _, runner in expected:
        if isinstance(runner, NotRun):
            named = re.findall(r"tests/[\w/]+\.py", runner.why)
            assert [name for name in named if not (ROOT / name).exists()] == []
            continue
        file, name = runner.split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}", text, re.MULTILINE), f"{runner} is no test"
        last = re.escape(page.rpartition("/")[2])
        reads = rf"{last}|\{{\w+\}}\.md|blocks\(page"
        assert re.search(reads, text), f"{file} does not read {page}"


def test_no_page_is_named_that_is_not_there() -> None:
    assert [page for page in SNIPPETS if not (ROOT / page).exists()] == []


def test_make_has_each_target_that_a_page_shows() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)}
    shown = {
        line.split()[1]
        for page in PAGES
        for block in blocks(page)
        for line in block.lines
        if line.startswith("make ")
    }
    assert len(shown) > 7
    assert shown <= targets
