"""The responses with a JSON body."""

import json

from starlette.responses import JSONResponse as StarletteJSONResponse

from coterie.nouns.text import without_lone_surrogates


class JSONResponse(StarletteJSONResponse):
    """Starlette's JSON response, except that a text with half of a surrogate pair, which a plug-in may return, is not
    an error: the half becomes U+FFFD (:func:`coterie.nouns.text.without_lone_surrogates`)."""

    def render(self, content: object) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return without_lone_surrogates(text).encode()
