"""Formulas as MathML, which browsers draw themselves: no script, no font, nothing to fetch."""

from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(f'<span class="formula">{latex2mathml.tex2mathml(node.astext())}</span>')
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Gives Sphinx the renderer."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
