"""Convert state to lines and cells of safe text. None of these modules depends on a terminal or on Textual."""
