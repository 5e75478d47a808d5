"""The worker's Celery settings that jobs rely on."""

from service.settings import Settings
from workers.app import make_worker_app


def test_a_message_leaves_the_broker_early_and_alone(tmp_path):
    app = make_worker_app(Settings(data_dir=tmp_path, broker_url="redis://localhost:1"))
    assert "workers.train" in app.tasks
    conf = app.conf
    assert conf.task_acks_late is False
    assert conf.task_ignore_result is True
    assert conf.result_backend is None
    assert (conf.worker_pool, conf.worker_concurrency) == ("prefork", 1)
    assert (conf.worker_prefetch_multiplier, conf.worker_disable_prefetch) == (1, True)
    assert conf.broker_connection_max_retries is None
    assert conf.worker_cancel_long_running_tasks_on_connection_loss is False
