from tests.jobs.conftest import jobs as jobs
