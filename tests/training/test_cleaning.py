"""Knows what small pages of every source format must look like once cleaned. Does not know the real packages."""

from training.cleaning import html_blocks, manual_page_blocks, pod_blocks
from training.restructured import restructured_text_blocks


def test_html_keeps_prose_code_and_lists_and_drops_navigation_and_drawings() -> None:
    page = """<html><head><title>T</title></head><body><div class="navheader"><div>Prev</div>Up</div>
    <h2>The <code>VACUUM</code> command</h2><p>It  reclaims
    space.<script>alert(1)</script><div class=imgcontainer><svg><text>box</text></svg></div>
    <ul><li>first<li><p>second</p></ul><pre>
  SELECT 1;
    FROM t;
</pre><table><tr><td>a<td>b</table></body></html>"""
    assert html_blocks(page) == [
        "## The `VACUUM` command",
        "It reclaims space.",
        "* first",
        "* second",
        "    SELECT 1;\n      FROM t;",
        "a | b",
    ]


def test_restructured_text_resolves_roles_signatures_versions_and_literal_blocks() -> None:
    source = """:mod:`functools` --- Tools
==========================

.. module:: functools
   :synopsis: Dropped.

.. _target:

.. function:: cache(user_function)
              cache()

   Returns the same as :func:`~functools.lru_cache`, see :ref:`here <target>` and
   ``maxsize``. For *example*::

      @cache
      def f(n):
          return n

   .. versionadded:: 3.9

   .. versionchanged:: 3.10
      It is
      faster.

* one
  more
* two

===== ======
Name  Use
===== ======
``a`` first
      part
===== ======
"""
    assert restructured_text_blocks(source) == [
        "# `functools` --- Tools",
        "`cache(user_function)`",
        "`cache()`",
        "Returns the same as `lru_cache()`, see here and `maxsize`. For example:",
        "    @cache\n    def f(n):\n        return n",
        "New in version 3.9.",
        "Changed in version 3.10: It is faster.",
        "* one more",
        "* two",
        "Name | Use",
        "`a` | first part",
    ]


def test_pod_resolves_nested_and_wide_codes_and_drops_formats() -> None:
    source = """=head1 NAME
X<entry>

B<Use C<my($x)>> or C<< a->b >>, see L<the page|perlsub/"Name"> E<lt>

=over 4

=item *

One

=back

    my $x = 1;

    $x++;

=begin html

<b>no</b>

=end html

=head2 Last
"""
    assert pod_blocks(source) == [
        "# NAME",
        "Use `my($x)` or `a->b`, see the page <",
        "One",
        "    my $x = 1;\n\n    $x++;",
        "## Last",
    ]


def test_manual_page_reads_what_pod2man_writes() -> None:
    source = r""".\" set-up
.de Sp
.TH Test::More 3perl "date"
.SH "NAME"
Test::More \- a \fBframework\fR
.PP
Use \f(CW\*(C`ok()\*(C'\fR, not \*(L"is\*(R".
.Vb 2
\&  print "a\en";
\&    b(\*(Aqx\*(Aq);
.Ve
.IP "\fBterm\fR" 4
.IX Item "term"
Its text.
"""
    assert manual_page_blocks(source) == [
        "# NAME",
        "Test::More - a framework",
        'Use `ok()`, not "is".',
        "    print \"a\\n\";\n      b('x');",
        "* term",
        "Its text.",
    ]
