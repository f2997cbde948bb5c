"""How English numbers, units and signs are said, where a phonemiser gets them wrong.

Plain numbers, decimals, ordinals, "%" and "10:30" stay: espeak-ng reads them well.
"""

import re
from collections.abc import Callable

from num2words import num2words

Match = re.Match[str]
Rule = tuple[re.Pattern[str], str | Callable[[Match], str]]

STOP, DOT, AT = ".", " dot ", " at "

_NUM = r"\d+(?:,\d{3})*(?:\.\d+)?"
_MONTHS = (
    "January February March April May June July August September October November December".split()
)
_CURRENCIES = {
    "$": ("dollar", "cent"),
    "€": ("euro", "cent"),
    "£": ("pound", "pence"),
    "¥": ("yen", ""),
    "￥": ("yuan", ""),
    "₹": ("rupee", "paise"),
}
_INVARIABLE = ("yen", "yuan", "pence", "paise")
_SCALES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "t": "trillion"}
_UNITS = {
    "km/h": "kilometer* per hour",
    "mph": "mile* per hour",
    "m/s": "meter* per second",
    "°C": "degree* Celsius",
    "℃": "degree* Celsius",
    "°F": "degree* Fahrenheit",
    "℉": "degree* Fahrenheit",
    "°": "degree*",
    "km²": "square kilometer*",
    "m²": "square meter*",
    "km": "kilometer*",
    "cm": "centimeter*",
    "mm": "millimeter*",
    "m": "meter*",
    "mi": "mile*",
    "ft": "foot/feet",
    "kg": "kilogram*",
    "mg": "milligram*",
    "g": "gram*",
    "lbs": "pound*",
    "lb": "pound*",
    "oz": "ounce*",
    "ml": "milliliter*",
    "mL": "milliliter*",
    "L": "liter*",
    "ms": "millisecond*",
    "s": "second*",
    "min": "minute*",
    "h": "hour*",
    "hrs": "hour*",
    "kWh": "kilowatt hour*",
    "kW": "kilowatt*",
    "W": "watt*",
    "V": "volt*",
    "KB": "kilobyte*",
    "MB": "megabyte*",
    "GB": "gigabyte*",
    "TB": "terabyte*",
    "kHz": "kilohertz",
    "MHz": "megahertz",
    "GHz": "gigahertz",
    "Hz": "hertz",
    "dB": "decibel*",
}
_FRACTIONS = {
    "1/2": "one half",
    "1/3": "one third",
    "2/3": "two thirds",
    "1/4": "one quarter",
    "3/4": "three quarters",
    "1/5": "one fifth",
    "1/8": "one eighth",
    "1/10": "one tenth",
}


def digit_groups(text: str) -> str:
    """Spells digits one by one, with a pause between groups: "555 0100" -> "5 5 5, 0 1 0 0"."""
    return ", ".join(" ".join(group) for group in re.findall(r"\d+", text))


def infix(sign: str) -> str:
    """Returns a pattern for a sign between operands, not for one inside a word."""
    return rf"(?<=[\w)])\s+{sign}\s+(?=[\w(-])|(?<=\d){sign}(?=\d)|(?<=\b[A-Za-z]){sign}(?=\w)"


def _phone(match: Match) -> str:
    return ("plus " if match[0].startswith("+") else "") + digit_groups(match[0])


def _year(year: str) -> str:
    number = int(year)
    said = 1100 <= number < 2000 or 2010 <= number < 2100
    return num2words(number, to="year") if said else year


def _date(match: Match) -> str:
    year, month, day = match[1], int(match[2]), int(match[3])
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return match[0]
    return f"{_MONTHS[month - 1]} {num2words(day, to='ordinal_num')}, {_year(year)}"


def _time(match: Match) -> str:
    hour, minute, second, half = match[1].lstrip("0") or "0", match[2], match[3], match[4]
    half = f" {half.replace('.', '').strip()}" if half else ""
    if second:
        return f"{hour} {minute} {second}{half}"
    if minute == "00":
        return hour + (half or " o'clock")
    return f"{hour} {'oh ' if minute[0] == '0' else ''}{int(minute)}{half}"


def _money(match: Match) -> str:
    (major, minor), amount, scale = _CURRENCIES[match[1]], match[2], match[3]
    if scale:
        return f"{amount} {_SCALES.get(scale.lower(), scale)} {_some(major, 2)}"
    whole, _, rest = amount.partition(".")
    if len(rest) != 2 or not minor:
        return f"{amount} {_some(major, 1 if amount == '1' else 2)}"
    wholes = f"{whole} {_some(major, int(whole.replace(',', '')))}"
    if rest == "00":
        return wholes
    cents = f"{int(rest)} {_some(minor, int(rest))}"
    return cents if whole == "0" else f"{wholes} {cents}"


def _some(noun: str, count: int) -> str:
    return noun if count == 1 or noun in _INVARIABLE else f"{noun}s"


def _unit(match: Match) -> str:
    one, _, many = _UNITS[match[2]].partition("/")
    if match[1] == "1":
        return f"1 {one.replace('*', '')}"
    return f"{match[1]} {(many or one).replace('*', 's')}"


def _dotted(match: Match) -> str:
    return match[0].replace(".", DOT if match[0].count(".") == 3 else " point ")


def _decade(match: Match) -> str:
    said = num2words(int(match[1] or match[2]), to="year")
    return said[:-1] + "ies" if said.endswith("y") else said + "s"


def _rules(*rows: tuple[str, str | Callable[[Match], str]]) -> list[Rule]:
    return [(re.compile(pattern), said) for pattern, said in rows]


_ABBREVIATIONS = _rules(
    (r"\bDr\.(?=\s+[A-Z])", "Doctor"),
    (r"\bMr\.", "Mister"),
    (r"\bMrs\.", "Missus"),
    (r"\bMs\.", "Miz"),
    (r"\bProf\.", "Professor"),
    (r"\bSt\.(?=\s+[A-Z])", "Saint"),
    (r"\bJr\.", "Junior"),
    (r"\bSr\.", "Senior"),
    (r"\bPh\.D\.?", "PhD"),
    (r"\b[eE]\.g\.,?", "for example,"),
    (r"\b[iI]\.e\.,?", "that is,"),
    (r"\betc\.", "et cetera"),
    (r"\bvs\b\.?", "versus"),
    (r"\bapprox\.", "approximately"),
    (r"\b[Nn]o\.\s?(?=\d)", "number "),
    (r"\b[Ff]igs?\.\s?(?=\d)", "figure "),
    (r"\b([ap])\.m\.", r"\1m"),
    (r"\bw/o\b", "without"),
)

_SIGNS = _rules(
    (r"\b([CF])#", r"\1 sharp"),
    (r"#(?=\d)", "number "),
    (r"\s*(?:<=|≤)\s*", " less than or equal to "),
    (r"\s*(?:>=|≥)\s*", " greater than or equal to "),
    (r"\s*(?:!=|≠)\s*", " not equal to "),
    (r"\s*(?:[-=]>|→|⇒|➜)\s*", ", "),
    (infix("<"), " less than "),
    (infix(">"), " greater than "),
    (infix("={1,3}"), " equals "),
    (infix(r"\+"), " plus "),
    (infix(r"\*") + r"|\s*×\s*", " times "),
    (r"\s*÷\s*", " divided by "),
    (r"±", " plus or minus "),
    (r"\^2\b|²", " squared"),
    (r"\^3\b|³", " cubed"),
    (r"(?<=\w)\^(?=\w)", " to the power of "),
    (r"(?:~|≈)\s?(?=[\d$€£])", "about "),
    (r"(?<=\d)\s+[-−–]\s+(?=\d)|(?<![\w.)-])[-−](?=\d)", " minus "),
    (r"(?<=\d)-(?=\d)", " "),
    (r"(?<![\w+])\+(?=\d)", "plus "),
    (r"&", " and "),
    (r"(?<=\w)@(?=\w)|\s@\s", AT),
    (r"(?<=[A-Za-z0-9]{2})\.(?=[A-Za-z]{2})", DOT),
    (r"(?<=[A-Za-z])/(?=[A-Za-z])", " "),
)

_UNIT_NAMES = "|".join(map(re.escape, sorted(_UNITS, key=len, reverse=True)))

RULES = [
    *_rules(
        (r"(?<![\w+])\+\d{1,3}(?:[ .-]?\(?\d{2,5}\)?)+(?!\w)", _phone),
        (r"(?<![\w.-])(?:\d[-. ])?\(?\d{3}\)?[-. ]\d{3}[-. ]\d{4}(?![\w-])", _phone),
        (r"(?<![\w.-])\d{3}-\d{4}(?![\w-])", _phone),
        (r"(?<![\w.-])\d{4}(?:[ -]\d{4}){3}(?![\w-])|(?<![\w.,])\d{10,}(?<!000)\b", _phone),
        (r"\b(\d{4})-(\d{2})-(\d{2})\b", _date),
        (
            r"(?<![\d:])([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?(?![\d:])"
            r"(\s?[ap]m\b|\s?[ap]\.m\.|\s?[AP]M\b)?",
            _time,
        ),
        (r"(?<![\d.])\d+(?:\.\d+){2,}(?!\w)", _dotted),
        (rf"(?<![\w.,-])([$€£]?{_NUM}%?)(?:-|\s?–\s?)(?=[$€£]?{_NUM}(?![\d-]))", r"\1 to "),
        (
            rf"([{''.join(_CURRENCIES)}])\s?({_NUM})"
            r"(?:\s?(thousand|million|billion|trillion|bn|[kKmMbBtT])\b)?",
            _money,
        ),
        (r"(?<![\w/])\d/\d{1,2}(?![\w/])", lambda m: _FRACTIONS.get(m[0], m[0])),
        (r"\b(1[1-9]\d0|20[1-9]0)['’]?s\b|(?<=the )['’]?([2-9]0)['’]?s\b", _decade),
        (rf"(?<![\w.])({_NUM})\s?({_UNIT_NAMES})(?![\w²/])", _unit),
        (
            rf"\b([Ii]n|[Bb]y|[Ss]ince|[Uu]ntil|[Bb]efore|[Yy]ear|{'|'.join(_MONTHS)}|\d{{1,2}},)"
            r"\s(1[1-9]\d\d|20[1-9]\d)\b(?![,.]?\d)",
            lambda m: f"{m[1]} {_year(m[2])}",
        ),
    ),
    *_ABBREVIATIONS,
    *_SIGNS,
]
"""Applied in this order."""
