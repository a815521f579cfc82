"""Figures that are visible where a notebook has no renderer of Plotly's own format."""

import re
from html import escape, unescape
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from typing_extensions import override

from anchorlens.figures.export import caption_of

# Plotly's default in a kernel; JupyterLab and VS Code render it, an exported page does not.
_DEFAULT = "plotly_mimetype"
_CURE = (
    "This viewer draws no figures. Save it with al.save_html(figure, 'figure.html') and open the"
    " page in a browser."
)


# Shows a text where scripts run, but Plotly's could not be fetched.
_WITHOUT_PLOTLY = """<p hidden>{text}</p><script>(function (note) {{
  function check() {{
    if (window.Plotly) return;
    note.hidden = false;
    note.previousElementSibling.hidden = true;
  }}
  if (document.readyState === "complete") setTimeout(check, 5000);
  else window.addEventListener("load", check);
}})(document.currentScript.previousElementSibling)</script>"""


class NotebookFigure(go.Figure):
    """Plotly figure whose notebook output also has an HTML form and a text.

    ``jupyter nbconvert --execute --to html`` and viewers without Plotly's extension show the HTML
    form, which loads Plotly's script from the network. Viewers that run no script or have no
    network, and the terminal of IPython, show title and caption, and how to save the figure as a
    page. Any other
    ``plotly.io.renderers.default`` is kept.
    """

    @override
    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None, validate: bool = True, **kwargs: Any
    ) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(include, exclude, validate, **kwargs)
        if pio.renderers.default == _DEFAULT:
            page = self.to_html(full_html=False, include_plotlyjs="cdn")
            text = self._text_form()
            note = _WITHOUT_PLOTLY.format(text=escape(text))
            bundle["text/html"] = f"{page}{note}<noscript><p>{escape(text)}</p></noscript>"
            bundle["text/plain"] = text
        return bundle

    def _text_form(self) -> str:
        """Return title, caption and what to do where the figure cannot be drawn."""
        title = re.sub(r"<br>|</span><span", " ", str(self.layout.title.text or "Figure"))
        parts = [unescape(re.sub(r"<[^>]+>", "", title)), caption_of(self), _CURE]
        return "\n".join(part for part in parts if part)

    @override
    def _ipython_display_(self) -> None:
        if not (pio.renderers.render_on_display and pio.renderers.default == _DEFAULT):
            super()._ipython_display_()
            return
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
