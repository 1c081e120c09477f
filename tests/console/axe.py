"""axe-core, which npm fetches: the rules of WCAG that a program can check, in the page itself."""

from __future__ import annotations

import json

from tests.console.browser import Page
from tests.support.components import npm_package

AXE = npm_package("axe-core", "axe-core, which looks for barriers in a page,", "4.14.1")
#: Read from the file, and run beside the page's own scripts, whose policy allows no others.
_FOUND = """axe.run({resultTypes: ["violations"]}).then(({violations}) => violations
    .filter(({impact}) => ["serious", "critical"].includes(impact))
    .flatMap(({id, nodes}) => nodes.map((node) => `${id}: ${node.html}: ${node.failureSummary}`)))
"""


async def barriers(page: Page) -> list[str]:
    """What axe-core finds serious or critical in a page as it is now shown."""
    if not await page.value("typeof axe === 'object'"):
        file = AXE.path() / "node_modules" / "axe-core" / "axe.min.js"
        await page.value(f"{file.read_text(encoding='utf-8')};0")
    found = await page.value(_FOUND)
    assert isinstance(found, list), json.dumps(found)
    return found
