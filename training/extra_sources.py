"""Knows which further packages of technical documentation the model is trained on, their pages and their licences.
Does not know markup (`extra_pages.py`), nor how duplicates, held-out text and limits are kept (`extras.py`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from training.cleaning import manual_page_blocks
from training.corpus import Source
from training.extra_pages import (
    apache_blocks,
    docbook_blocks,
    erlang_blocks,
    handwritten_manual_page_blocks,
    nim_blocks,
    node_blocks,
    plain_page_blocks,
    rust_book_blocks,
    rustdoc_blocks,
    sphinx_blocks,
    tomcat_blocks,
)
from training.restructured import restructured_text_blocks

# What the copyright file of an extra package may declare for upstream's files; anything else is refused.
PERMISSIVE_LICENCES = frozenset(
    {
        "Apache", "Apache-2", "Apache-2.0", "APACHE-2-LLVM-EXCEPTIONS", "BSD-2-clause", "BSD-3", "BSD-3-clause",
        "BSD-3-Clause", "BSL-1.0", "Expat", "Go", "MIT", "MIT or Apache-2.0", "TCL", "curl",
    }
)  # fmt: skip


@dataclass(frozen=True)
class FreeFormLicence:
    """The licence of a package whose copyright file is not in Debian's machine-readable form, and words of it that
    must stand in the file (blanks do not matter), so that a change of licence is noticed."""

    name: str
    proof: str


@dataclass(frozen=True)
class ExtraPackage:
    """One package and its pages; the first sources are wanted most, should the package be more than its limit."""

    name: str
    sources: tuple[Source, ...]
    free_form_licence: FreeFormLicence | None = None
    copyright_package: str | None = None  # the package whose copyright file is meant, when the name is a link to it


_LISTS = r"(^|/)(genindex|modindex|py-modindex|search|index|contents|license|print|title-page|SUMMARY|toc|all)[.-]"
_HISTORY = (
    r"|(^|/)(changes|changelog|changelog_\w+|history|AUTHORS|credits|contributors|_modules|_static|_sources)(/|\.|$)"
)


def _pages(
    package: str, folder: str, pattern: str, read_blocks: Callable[[str], list[str]], left_out: str = r"$^"
) -> Source:
    return Source(package, folder, pattern, re.compile(f"{_LISTS}{_HISTORY}|{left_out}"), read_blocks)


def _python(name: str, left_out: str = r"$^") -> ExtraPackage:
    """A package of Debian's Python team: Sphinx pages at the place that its policy names."""
    pages = _pages(name, f"usr/share/doc/{name}/html", "**/*.html", sphinx_blocks, left_out)
    return ExtraPackage(name, (pages,))


def _rust() -> ExtraPackage:
    folder = "usr/share/doc/rust-doc/html"
    books = ("book", "reference", "nomicon", "rust-by-example", "rustc", "edition-guide", "embedded-book", "rustdoc")
    sources = [_pages("rust-doc", folder, f"{book}/**/*.html", rust_book_blocks, "2018-edition") for book in books]
    sources.append(_pages("rust-doc", folder, "error-index.html", plain_page_blocks))
    sources.append(_pages("rust-doc", folder, "std/**/*.html", rustdoc_blocks, "std/(arch|intrinsics|simd|os)/"))
    return ExtraPackage("rust-doc", tuple(sources), FreeFormLicence("MIT or Apache-2.0", "License: MIT or Apache-2.0"))


def _boost() -> ExtraPackage:
    folder = "usr/share/doc/libboost1.74-doc/doc/html"
    prose = _pages("libboost1.74-doc", folder, "**/*.html", docbook_blocks, r"^boost/|reference/|/boost/")
    return ExtraPackage("libboost1.74-doc", (prose,))


def _llvm(name: str, folder: str, left_out: str) -> ExtraPackage:
    pages = _pages(name, folder, "**/*.rst.txt", restructured_text_blocks, left_out)
    return ExtraPackage(name, (pages,))


_TCL_PROOF = "permission to use, copy, modify, distribute, and license this software and its documentation for any"
_MIT_PROOF = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"
_BSD_PROOF = "Redistribution and use in source and binary forms, with or without modification, are permitted"


def _tcl(name: str) -> ExtraPackage:
    pages = _pages(name, "usr/share/man", "man*/*.gz", handwritten_manual_page_blocks)
    return ExtraPackage(name, (pages,), FreeFormLicence("TCL", _TCL_PROOF))


def _free_form(package: ExtraPackage, name: str, proof: str) -> ExtraPackage:
    return ExtraPackage(package.name, package.sources, FreeFormLicence(name, proof))


# In the order in which they are read: of two pages that say the same, the one read first stays.
EXTRA_PACKAGES = (
    ExtraPackage(
        "nodejs-doc", (_pages("nodejs-doc", "usr/share/doc/nodejs/api", "*.html", node_blocks, r"^documentation\."),)
    ),
    _rust(),
    _python("python-django-doc", r"^releases/(0|1)\.|^internals/deprecation"),
    _python("python-sqlalchemy-doc"),
    ExtraPackage(
        "cmake-doc",
        (_pages("cmake-doc", "usr/share/doc/cmake-data/html", "**/*.html", sphinx_blocks),),
        copyright_package="cmake-data",
    ),
    ExtraPackage(
        "apache2-doc",
        (
            _pages(
                "apache2-doc", "usr/share/doc/apache2-doc/manual/en", "**/*.html", apache_blocks, r"mod/(quickref|dir)"
            ),
        ),
    ),
    ExtraPackage("libssl-doc", (_pages("libssl-doc", "usr/share/man", "man*/*.gz", manual_page_blocks),)),
    _tcl("tcl8.6-doc"),
    _tcl("tk8.6-doc"),
    ExtraPackage(
        "libcurl4-doc", (_pages("libcurl4-doc", "usr/share/man", "man3/*.gz", handwritten_manual_page_blocks),)
    ),
    ExtraPackage(
        "erlang-doc",
        (_pages("erlang-doc", "usr/share/doc/erlang-doc", "**/*.html", erlang_blocks, r"lib/wx-|notes|_app\.html"),),
    ),
    _llvm("llvm-15-doc", "usr/share/doc/llvm-15-doc/html/_sources", r"AMDGPU/|ReleaseNotes|AMDGPU"),
    _llvm(
        "clang-15-doc", "usr/share/doc/clang-15/html/_sources", r"ReleaseNotes|ClangCommandLineReference|DiagnosticsRef"
    ),
    _boost(),
    ExtraPackage(
        "tomcat10-docs", (_pages("tomcat10-docs", "usr/share/tomcat10-docs/docs", "**/*.html", tomcat_blocks, r"api/"),)
    ),
    ExtraPackage("nim-doc", (_pages("nim-doc", "usr/share/doc/nim/html", "*.html", nim_blocks, r"theindex"),)),
    _python("python-pandas-doc", r"ecosystem|^reference/index"),
    _python("python-scipy-doc", r"^release[./]|^dev/core|^roadmap|linalg\.(lapack|blas|cython)"),
    _python("python-sympy-doc"),
    _python("python-sklearn-doc", r"^whats_new/|^related_projects|^about|sg_execution_times|^testimonials"),
    _python("python-dask-doc", r"^generated/"),
    _python("sphinx-doc"),
    _python("python-flask-doc"),
    _python("python-werkzeug-doc"),
    _free_form(_python("python-jinja2-doc"), "BSD-3-Clause", _BSD_PROOF),
    _python("python-click-doc"),
    _python("python-pytest-doc", r"^announce/"),
    _python("python-tornado-doc"),
    _python("python-aiohttp-doc"),
    _python("python-cryptography-doc"),
    _free_form(_python("python-setuptools-doc"), "MIT", _MIT_PROOF),
    _python("python-ipython-doc", r"github-stats"),
    ExtraPackage("varnish-doc", (_pages("varnish-doc", "usr/share/doc/varnish/html", "**/*.html", sphinx_blocks),)),
    ExtraPackage(
        "golang-1.19-doc",
        (_pages("golang-1.19-doc", "usr/share/doc/golang-1.19-doc/html", "*.html", plain_page_blocks),),
    ),
)
