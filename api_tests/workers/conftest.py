import pytest

from api_tests.workers.scripted_peer import TrainerProcess


@pytest.fixture
def start_trainer(tmp_path):
    started = []

    def start(spec):
        workdir = tmp_path / str(len(started))
        workdir.mkdir()
        started.append(TrainerProcess(workdir, spec))
        return started[-1]

    yield start
    for trainer in started:
        trainer.close()
