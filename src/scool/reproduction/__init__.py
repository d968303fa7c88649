"""The paper: its rows, its runs, its tables and figures beside ours."""
