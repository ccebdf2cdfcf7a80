"""The table of servers in docs/stores.md, which `make conformance` writes."""

from tests.s3_servers import BEGIN, END, HEAD, PAGE, PROGRAMS, row


def lines() -> list[str]:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()


def test_the_table_has_the_versions_that_are_installed() -> None:
    head, _, *rows = lines()
    assert head == HEAD.splitlines()[0]
    assert [line.split(" | ")[0] for line in rows] == [f"| {name} {it.version}" for name, it in PROGRAMS.items()]


def test_a_row_shows_what_is_wrong() -> None:
    found = {
        "checks": [
            {"name": "conditions", "outcome": "bad"},
            {"name": "freshness", "outcome": "bad"},
            {"name": "unfinished writes", "outcome": "warning"},
            {"name": "bucket: versioning", "outcome": "unknown"},
        ],
        "contest": {"rounds": 100, "won_twice": 3, "won_by_nobody": 0, "late_reads": 1},
    }
    assert row("rclone", found, "all but `test_x`") == (
        f"| rclone {PROGRAMS['rclone'].version} | **ignored** | **wrong in 4 of 100** | **no** | **no** | versioning "
        "| all but `test_x` |\n"
    )
