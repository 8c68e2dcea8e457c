import pytest

from clnp.methods.single import Finetune
from support.forgetting import remaining


@pytest.fixture(scope="session")
def score_of_finetuning(tmp_path_factory):
    """The mean score of earlier tasks after fine-tuning, which forgets them."""
    return remaining(Finetune(), tmp_path_factory.mktemp("finetune"))
