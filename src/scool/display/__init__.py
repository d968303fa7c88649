"""What people look at: tables, heat maps, figures and pages, drawn from records and results."""
