"""From run.json files to tables and figures; imports neither torch nor the other rooms."""
