"""The provider's signature, and the tokens of calls."""

import pytest

from bots.phone_auth import MAX_TOKENS, SETTINGS, SIGNATURE, TOKEN_S, Secrets, Tokens, sign
from tests.fakes import ManualClock

URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
FORM = [
    ("Digits", "1234"),
    ("To", "+18005551212"),
    ("From", "+14158675309"),
    ("Caller", "+14158675309"),
    ("CallSid", "CA1234567890ABCDE"),
]
SECRETS = Secrets("12345", "other")
SHA256 = "key=,algorithm=HMAC_SHA256"


def test_the_providers_own_example():
    assert sign("12345", URL, FORM) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="
    assert SECRETS.verify({SIGNATURE: "RSOYDt4T1cUTdK1PDd93/VVr8B8="}, URL, FORM)


def test_the_newer_header_names_the_hash_and_another_secret():
    signature = sign("other", URL, FORM, "sha256")
    assert SECRETS.verify({SIGNATURE: signature, SETTINGS: SHA256}, URL, FORM)
    assert not SECRETS.verify({SIGNATURE: signature}, URL, FORM)
    ours = sign("12345", URL, FORM, "sha256")
    assert not SECRETS.verify({SIGNATURE: ours, SETTINGS: SHA256}, URL, FORM)
    assert Secrets("12345").verify({SIGNATURE: ours, SETTINGS: SHA256}, URL, FORM)
    old = sign("other", URL, FORM)
    assert SECRETS.verify({SIGNATURE: old, SETTINGS: "algorithm=HMAC_SHA1"}, URL, FORM)


@pytest.mark.parametrize("settings", ["", "key=", "algorithm=HMAC_MD5", "algorithm=", "nonsense"])
def test_an_unknown_hash_is_no_signature(settings):
    for secret in ("12345", "other"):
        for name in ("sha1", "sha256"):
            headers = {SIGNATURE: sign(secret, URL, FORM, name), SETTINGS: settings}
            assert not SECRETS.verify(headers, URL, FORM)


@pytest.mark.parametrize(
    ("url", "form"),
    [
        (URL.replace("mycompany", "another"), FORM),
        (URL.replace("https", "http"), FORM),
        (URL + "&more=1", FORM),
        (URL.replace(".com/", ".com:8443/"), FORM),
        (URL, FORM[1:]),
        (URL, [*FORM, ("Digits", "5")]),
        (URL, [(name, value.strip("+")) for name, value in FORM]),
        (URL, []),
    ],
)
def test_what_was_not_signed(url, form):
    assert not SECRETS.verify({SIGNATURE: sign("12345", URL, FORM)}, url, form)


@pytest.mark.parametrize("signature", [None, "", "x", "RSOYDt4T1cUTdK1PDd93/VVr8B8", "é"])
def test_no_or_a_bad_signature(signature):
    headers = {} if signature is None else {SIGNATURE: signature}
    assert not SECRETS.verify(headers, URL, FORM)


@pytest.mark.parametrize(
    ("known", "signed"),
    [
        ("https://a.b/voice", "https://a.b:443/voice"),
        ("https://a.b:443/voice", "https://a.b/voice"),
        ("wss://a.b/ws/t", "wss://a.b:443/ws/t"),
        ("http://a.b/voice", "http://a.b:80/voice"),
        ("https://[2001:db8::1]/voice", "https://[2001:db8::1]:443/voice"),
    ],
)
def test_the_default_port_may_be_spelled(known, signed):
    assert SECRETS.verify({SIGNATURE: sign("12345", signed)}, known)


def test_a_field_that_comes_twice_is_signed_twice():
    form = [("a", "2"), ("a", "1"), ("b", "")]
    assert sign("k", "u://h/", form) == sign("k", "u://h/a1a2b")


def test_a_token_works_once_and_for_a_minute():
    clock = ManualClock()
    tokens = Tokens(clock)
    first, second, third = (tokens.issue(call) for call in ("CA1", "CA2", "CA3"))
    assert len({first, second, third}) == 3
    assert tokens.redeem(first) == "CA1"
    assert tokens.redeem(first) is None
    clock.now_s = TOKEN_S - 0.1
    assert tokens.redeem(second) == "CA2"
    clock.now_s = TOKEN_S
    assert tokens.redeem(third) is None
    assert tokens.redeem("") is None


def test_tokens_are_bounded():
    tokens = Tokens(ManualClock())
    issued = [tokens.issue(f"CA{n}") for n in range(MAX_TOKENS + 1)]
    assert tokens.redeem(issued[0]) is None
    assert tokens.redeem(issued[1]) == "CA1"
