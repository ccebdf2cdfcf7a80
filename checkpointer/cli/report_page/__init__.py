"""Make one page about a store.

`gather.make_report` reads the store, `page.render` makes HTML of the result.
"""
