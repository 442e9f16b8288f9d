"""PostgreSQL: what is kept and how it is read and written. Functions take a connection and never commit."""
