"""Secrets: which are found, what is taken for none, what records and files of a command hold.

Samples are put together here: this file, which archives hold, has none as a whole.
"""

import base64
import random
import shlex
import string
import subprocess

import pytest

from release import private
from release.manifest import shipped
from tests.studio import REPOSITORY
from workflow.collocation.study.cell import spec_digest
from workflow.collocation.study.redaction import HIDDEN, redacted, redacted_words, secrets_in

RANDOM = random.Random(54)
CUT = "|"  # in samples, where this file must not hold them as a whole
LETTERS, HEX = string.ascii_letters + string.digits, "0123456789abcdef"


def some(count: int, characters: str = LETTERS) -> str:
    """Random characters, with a digit and a letter among them."""
    return "".join(RANDOM.choices(characters, k=count - 2)) + "7f"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


UPPER = string.ascii_uppercase + string.digits
JWT = ".".join((b64('{"alg":"HS256"}').rstrip("="), b64('{"sub":"1"}').rstrip("="), some(43)))
# (what it is, the secret, a text that holds it as {})
SECRETS = [
    *(("GitHub", "gh" + f"{letter}_" + some(36), "{}") for letter in "pousr"),
    ("GitHub, fine-grained", "github" + "_pat_" + some(22) + "_" + some(59), "{}"),
    ("GitLab", "gl" + "pat-" + some(20), "GIT_ASKPASS={}"),
    ("GitLab, routable", "gl" + "pat-" + some(27) + ".01." + some(9), "{}"),
    ("GitLab, deploy", "gl" + "dt-" + some(20), "{}"),
    ("NVIDIA", "nv" + "api-" + some(64, LETTERS + "-_"), "--ngc {}"),
    ("Hugging Face", "h" + "f_" + some(34), "login('{}')"),
    ("Slack, bot", "xo" + f"xb-{10**11}-{10**12}-" + some(24), "{}"),
    ("Slack, user", "xo" + "xp-" + some(40), "{}"),
    ("Google", "AI" + "za" + some(35, LETTERS + "-_"), "?x={}"),
    ("PyPI", "py" + "pi-" + "AgEIcHlwaS5vcmcC" + some(150, LETTERS + "-_"), "{}"),
    ("npm", "np" + "m_" + some(36), "{}"),
    ("OpenAI", "s" + "k-" + some(48), "{}"),
    ("OpenAI, project", "s" + "k-proj-" + some(40) + "T3Blbk" + "FJ" + some(40), "{}"),
    ("Anthropic", "s" + "k-ant-api03-" + some(93, LETTERS + "-_"), "{}"),
    ("Stripe", "s" + "k_live_" + some(24), "{}"),
    ("SendGrid", "S" + "G." + some(22) + "." + some(43), "{}"),
    ("JWT", JWT, "{}"),
    ("AWS, key id", "AK" + "IA" + some(16, UPPER).upper(), "{}"),
    ("AWS, session's key id", "AS" + "IA" + some(16, UPPER).upper(), "{}"),
    ("AWS, variable", some(40, LETTERS + "/+"), "AWS_SECRET_ACCESS_KEY={} python t.py"),
    ("AWS, file", some(40, LETTERS + "/+"), "aws_secret_access_key = '{}'"),
    ("AWS, JSON", some(40, LETTERS + "/+"), '{{"SecretAccessKey": "{}"}}'),
    ("W&B, variable", some(40, HEX), "WANDB_API_KEY={}"),
    ("W&B, login", some(40, HEX), "wandb login {} && python train.py"),
    ("W&B, option", some(40, HEX), "python train.py --wandb-key {}"),
    ("W&B, JSON", some(40, HEX), '{{"WANDB_API_KEY": "{}"}}'),
    ("W&B, netrc", some(40, HEX), "machine api.wandb.ai login user password {}"),
    ("password", "hunter" + "2", "python t.py --password {} --lr 0.1"),
    ("password, =", "hunter" + "2", "python t.py --db-password={}"),
    ("password, list", "hunter" + "2", '["python","t.py","--password","{}"]'),
    ("password, spaced list", "hunter" + "2", '["t.py", "--password", "{}", "-v"]'),
    ("password, shell in JSON", "hunter" + "2", '"bash","-c","t.py --pass|word \\"{}\\""'),
    ("password, JSON", "hunter" + "2", '{{"password": "{}"}}'),
    ("password, variable", "hunter" + "2", "PGPASSWORD={} psql"),
    ("password, query", "hunter" + "2", "jdbc:db://h/d?user=u&password={}"),
    ("passwd", "hunter" + "2", "--passwd {}"),
    ("token", "abc" + "123", "t.py --token={}"),
    ("token, of something", "abc" + "123", "t.py --hf_token {}"),
    ("token, Hydra", "abc" + "123", "t.py +logger.token={}"),
    ("API key", "abc" + "123", "t.py --api-key {}"),
    ("API key, one word", "abc" + "123", "t.py --apikey={}"),
    ("secret", "abc" + "123", "t.py --client_secret {}"),
    ("key", some(32, HEX), "t.py --comet-key {}"),
    ("login", "hunter" + "2", "curl -u somebody:{} x"),
    ("URL", "hunter" + "2", "git clone https:|//somebody:{}@example.org/x.git"),
    ("URL, special", "p@ss" + "/w!rd", "https:|//somebody:{}@example.org/x"),
    ("URL, token", some(40), "https://{}@example.org/x"),
    *(
        (f"database, {scheme}", "hunter" + "2", f"{scheme}:|//user:{{}}@host:5432/db")
        for scheme in ("postgresql", "postgres", "mysql+pymysql", "mongodb+srv", "amqp")
    ),
    ("database, no user", "hunter" + "2", "redis:|//:{}@cache:6379/0"),
    ("basic header", b64("somebody:hunter2"), "-H 'Authorization: Basic {}'"),
    ("basic header, JSON", b64("somebody:hunter2"), '{{"Authorization": "Basic {}"}}'),
    ("bearer header", some(30), "Authorization: Bearer {}"),
    ("header", some(30), "curl -H 'X-Api-Key: {}'"),
    ("header, GitLab's", some(30), "curl --header 'PRIVATE-TOKEN: {}'"),
    *(
        (f"private key, {kind}", "MII" + some(60), f"-----BEGIN {kind}PRIVATE KEY-----\n{{}}\n")
        for kind in ("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ")
    ),
]


@pytest.mark.parametrize(("kind", "secret", "text"), SECRETS, ids=[kind for kind, *_ in SECRETS])
def test_a_secret_is_found_and_hidden(kind, secret, text):
    text = text.replace(CUT, "").format(secret)
    assert any(secret in one for one in private.Detector({}).in_text(text))
    assert secret not in redacted(text) and HIDDEN in redacted(text)
    assert [*secrets_in(redacted(text))] == []


HARMLESS = [
    *(f"{word}{digest}" for word in ("", "commit ", '"sha": "') for digest in [some(40, HEX)]),
    f"git+https://example.org/wandb/wandb@{some(40, HEX)}",
    f"{some(64, HEX)}  cells/1x_a/graph/naive/r1/a1/run.json",
    "GPU-b6efbf7a-8d3a-6dd7-c63b-16033fb68d0f",
    f'"digest": "{some(16, HEX)}", "session": "{some(12, HEX)}", "machine": "machine-7f32e10c"',
    "1x_dlrm_criteo_b2048+1x_resnet152_imagenet_b32--interleaved/paper_step/alone-2xmps-mps/r10",
    "5x_conformer_medium_speech_librispeech_b240_seconds_of_audio_bf16/graph_compile_step/r7",
    f"integrity sha512-{b64(some(64))}",
    '"tokens": 256, "unit": "tokens/s", "prompt_tokens": 128, "pad_token_id": 0',
    "--max-tokens 512 --tokenizer gpt2 --keyboard us --passes 3 --author somebody --sort-key name",
    "--token $HF_TOKEN --password=${PASSWORD} --api-key ***",
    "usage: [--token TOKEN] [--password PASSWORD]; Basic authentication, bearer of messages",
    "https://example.org:8080/@user/x postgresql://user@host/db git@|example.org:x/y.git",
    "https://{user}:{password}@example.org/ docker run -u 1000:1000",
    "what detect-secrets finds; the fine-grained-token page, a bank-password manager",
    "time to first token: 500 ms, key: value, secret of success",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text):
    text = text.replace(CUT, "")
    assert [*secrets_in(text)] == [] and redacted(text) == text


STUDIES = sorted(path.parent for path in REPOSITORY.glob("results/*/MANIFEST.sha256"))


@pytest.mark.parametrize("study", STUDIES, ids=[study.name for study in STUDIES])
def test_a_shipped_study_passes(study):
    assert [*private.Detector({}).search(study, shipped(study))] == []


def test_the_repository_passes():
    """As `make artifact` looks at it."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=REPOSITORY, text=True)
    names = [name for name in listed.split("\0") if name and not name.startswith("results/")]
    assert [*private.Detector({}).search(REPOSITORY, names)] == []


def test_a_record_that_holds_a_secret_is_of_the_same_cell():
    """As those of earlier versions, and as those of a renewed one."""
    digests = set()
    for secret in ("abc" + "123", "def" + "456", HIDDEN):
        job = {"kind": "command", "batch_size": 1, "run": ["t.py", "--token", secret, "--lr", "1"]}
        job |= {"workload": "t", "environment": {"A_KEY": secret, "B": "x", "C": None}}
        digests.add(spec_digest({"members": [job]}))
    others = [job | {"run": ["t.py", "--lr", "2"]}, job | {"environment": {"B": "y"}}]
    assert len(digests) == 1
    assert digests.isdisjoint({spec_digest({"members": [other]}) for other in others})


COMMANDS = [
    ("python t.py --lr 0.1 --batch {batch_size}", "python t.py --lr 0.1 --batch {batch_size}"),
    ("t.py --pass|word 'two words; and' --lr 1", "t.py --password *** --lr 1"),
    ("t.py --pass|word=a;b&c", "t.py --password=***"),
    ("t.py --token -v --use_auth_token True", "t.py --token -v --use_auth_token True"),
    ("t.py logger.api_|key='a b' x=1", "t.py logger.api_key=*** x=1"),
    ("wandb login " + 40 * "a", "wandb login ***"),
    ("sh -c 'HF_TO|KEN=abc t.py --to|ken \"a b\"'", "sh -c HF_TOKEN=*** t.py --token ***"),
    ("t.py --db redis:|//:abc@cache/0 --name x", "t.py --db redis://:***@cache/0 --name x"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "shown"), COMMANDS)
def test_a_command_is_recorded_without_its_secrets(line, shown):
    assert " ".join(redacted_words(shlex.split(line.replace(CUT, "")))) == shown
