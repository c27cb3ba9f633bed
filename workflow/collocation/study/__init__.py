"""Config, catalogue, studies, cells and their names, as typed data; everybody may import it."""
