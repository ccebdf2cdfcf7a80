"""One page about a store for a bad day: `make_report` gathers a value, `page.render` makes HTML of it."""
