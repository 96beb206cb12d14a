"""References of a written file to something on the network."""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree

_REFERENCE: Final = re.compile(
    r"url\(\s*[\"']?(?!#)[^)]*\)|@import[^;]*|(?:[a-z][a-z0-9+.-]*:)?//[^\s\"'<>]+", re.IGNORECASE
)
_DECLARATIONS: Final = re.compile(r"<!--.*?-->|<\?(?!xml version)[^>]*>|<!DOCTYPE[^>]*>", re.DOTALL)
_SVG: Final = "{http://www.w3.org/2000/svg}"
"""Namespace of SVG: a name, which no viewer fetches."""


def svg_references(svg: str) -> list[str]:
    """Return the parts of an SVG file that a viewer may fetch; texts of the picture are none."""
    elements = list(ElementTree.fromstring(svg).iter())
    values = [value for element in elements for value in element.attrib.values()]
    styles = [element.text or "" for element in elements if element.tag == f"{_SVG}style"]
    foreign = [element.tag for element in elements if not element.tag.startswith(_SVG)]
    active = [element.tag for element in elements if element.tag in (f"{_SVG}script", f"{_SVG}image", f"{_SVG}use")]
    found = [match[0] for value in [*values, *styles] for match in _REFERENCE.finditer(value)]
    return found + foreign + active + _DECLARATIONS.findall(svg)


def url_references(data: bytes) -> list[bytes]:
    """Return the URLs in a file of any kind."""
    return re.findall(rb"(?:https?|ftp|wss?)://[\x21-\x7e]+", data)
