"""Alembic's entry: run the migrations on the connection that ``run.migrate`` hands over."""

from alembic import context

from service.db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=False,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
