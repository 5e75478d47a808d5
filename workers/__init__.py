"""Workers: Celery delivers a hint, the database decides, a trainer process runs."""
