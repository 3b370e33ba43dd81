"""The page of ``ordinate explore`` as a Hugging Face Space."""

import os

from ordinate.web.serve import serve

if __name__ == "__main__":
    serve(
        host="0.0.0.0",
        port=int(os.environ.get("PORT", "7860")),
        framed_by="https://huggingface.co",  # where the Space is shown
    )
