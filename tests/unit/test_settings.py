import pytest

from models.settings import SecretKey, Settings, SettingsError, load, parse_secret_keys

SECRET = "s" * 32
OTHER = "o" * 40
MINIMAL = {
    "DIBS_DATABASE_URL": "postgresql://dibs:hunter2@db/dibs",
    "DIBS_REDIS_URL": "redis://:hunter2@cache/0",
    "DIBS_SECRET_KEYS": f"k1:{SECRET}",
}


def test_three_are_enough_and_the_rest_are_the_contracts_figures():
    assert load(MINIMAL) == Settings(
        database_url="postgresql://dibs:hunter2@db/dibs",
        redis_url="redis://:hunter2@cache/0",
        secret_keys=(SecretKey("k1", SECRET.encode()),),
        window_ttl_ms=15_000,
        lease_ms=3_000,
        window_max=500,
        window_max_open=10_000,
        wait_ms=10_000,
        agent_rate_per_second=200,
        agent_burst=1_000,
        agent_max_open=2_000,
    )


@pytest.mark.parametrize(
    ("name", "field", "least"),
    [
        ("DIBS_WINDOW_TTL_MS", "window_ttl_ms", 100),
        ("DIBS_LEASE_MS", "lease_ms", 500),
        ("DIBS_WINDOW_MAX", "window_max", 1),
        ("DIBS_WINDOW_MAX_OPEN", "window_max_open", 1),
        ("DIBS_WAIT_MS", "wait_ms", 1),
        ("DIBS_AGENT_RATE", "agent_rate_per_second", 1),
        ("DIBS_AGENT_BURST", "agent_burst", 1),
        ("DIBS_AGENT_MAX_OPEN", "agent_max_open", 1),
    ],
)
class TestNumber:
    def test_is_taken_from_the_least_to_the_largest(self, name, field, least):
        for value in (least, 2**31 - 1):
            assert getattr(load({**MINIMAL, name: str(value)}), field) == value

    def test_out_of_range_is_refused_by_name(self, name, field, least):
        assert getattr(load(MINIMAL), field) >= least
        for value in (least - 1, 2**31):
            with pytest.raises(SettingsError, match=f"^{name} must be a whole number from {least} to {2**31 - 1}$"):
                load({**MINIMAL, name: str(value)})

    @pytest.mark.parametrize(
        "text", ["", " ", "+700", "-700", "700.0", "7e2", "0x700", "7_000", "\u0667", "700 ", "\u00b2"]
    )
    def test_of_another_shape_is_refused(self, name, field, least, text):
        assert getattr(load(MINIMAL), field) >= least
        with pytest.raises(SettingsError, match=f"^{name} must be"):
            load({**MINIMAL, name: text})


def test_a_number_of_any_length_is_refused_in_one_line():
    with pytest.raises(SettingsError, match=r"^DIBS_WAIT_MS must be a whole number"):
        load({**MINIMAL, "DIBS_WAIT_MS": "9" * 5000})


@pytest.mark.parametrize("name", sorted(MINIMAL))
@pytest.mark.parametrize("absent", [True, False])
def test_what_is_required_is_asked_for_by_name(name, absent):
    env = {other: value for other, value in MINIMAL.items() if other != name} | ({} if absent else {name: ""})
    with pytest.raises(SettingsError, match=f"^{name} is not set$"):
        load(env)


def test_the_environment_of_the_process_is_read_when_none_is_given(monkeypatch):
    for name, value in MINIMAL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DIBS_LEASE_MS", "900")
    assert load().lease_ms == 900


class TestSecretKeys:
    def test_keep_their_order_and_the_first_signs(self):
        assert parse_secret_keys(f"k2:{OTHER}, k1:{SECRET}") == (
            SecretKey("k2", OTHER.encode()),
            SecretKey("k1", SECRET.encode()),
        )

    def test_may_hold_colons(self):
        assert parse_secret_keys(f"k1:a:b:{SECRET}")[0].secret == f"a:b:{SECRET}".encode()

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "entry 1"),
            (SECRET, "entry 1"),
            (f":{SECRET}", "entry 1"),
            (f"k-1:{SECRET}", "entry 1"),
            (f"clé:{SECRET}", "entry 1"),
            (f"k1:{SECRET},", "entry 2"),
            (f"k1:{SECRET},,k2:{OTHER}", "entry 2"),
            (f"k1:{SECRET[:-1]}", "'k1'"),
            ("k1:", "'k1'"),
            (f"k1:{SECRET},k1:{OTHER}", "'k1'"),
        ],
        ids=[
            "nothing", "no id", "empty id", "hyphen", "accent", "last comma", "two commas", "short", "empty", "twice",
        ],
    )  # fmt: skip
    def test_malformed_are_refused_without_showing_a_secret(self, text, said):
        with pytest.raises(SettingsError) as refused:
            parse_secret_keys(text)
        message = str(refused.value)
        assert message.startswith("DIBS_SECRET_KEYS: ")
        assert said in message
        assert "\n" not in message
        assert SECRET[:16] not in message
        assert OTHER[:16] not in message

    def test_of_bytes_that_are_no_text_are_refused(self):
        """The environment hands out bytes that are not UTF-8 as lone surrogates."""
        with pytest.raises(SettingsError):
            parse_secret_keys(f"k1:{SECRET}\udcff")


def test_nothing_secret_is_shown():
    shown = repr(load({**MINIMAL, "DIBS_SECRET_KEYS": f"k1:{SECRET}"}))
    assert "hunter2" not in shown
    assert SECRET[:16] not in shown
    assert "k1" in shown
