"""Migrations, applied by :mod:`models.store.migrate`."""
