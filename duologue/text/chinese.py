"""How numbers, units and signs are said in Mandarin; numbers become Hanzi by cn2an."""

import re
from collections.abc import Callable

import cn2an

Match = re.Match[str]
Rule = tuple[re.Pattern[str], str | Callable[[Match], str]]

STOP, DOT, AT = "。", "点", " at "

_NUM = r"\d+(?:,\d{3})*(?:\.\d+)?"
_DIGITS = str.maketrans("0123456789", "零一二三四五六七八九")
_MAX_DIGITS = 15
_CURRENCIES = {"$": "美元", "€": "欧元", "£": "英镑", "¥": "元", "￥": "元", "₹": "卢比"}
_UNITS = {
    "km/h": "公里每小时",
    "m/s": "米每秒",
    "°C": "摄氏度",
    "℃": "摄氏度",
    "°F": "华氏度",
    "℉": "华氏度",
    "°": "度",
    "km²": "平方公里",
    "m²": "平方米",
    "㎡": "平方米",
    "km": "公里",
    "cm": "厘米",
    "mm": "毫米",
    "m": "米",
    "kg": "公斤",
    "mg": "毫克",
    "g": "克",
    "ml": "毫升",
    "mL": "毫升",
    "L": "升",
    "ms": "毫秒",
    "s": "秒",
    "min": "分钟",
    "h": "小时",
    "GHz": "吉赫",
    "MHz": "兆赫",
    "Hz": "赫兹",
    "kW": "千瓦",
    "kWh": "千瓦时",
    "dB": "分贝",
}


def number(text: str) -> str:
    """Says a number without its sign: "4.15" -> "四点一五", "007" -> "零零七"."""
    plain = text.replace(",", "")
    whole = plain.partition(".")[0]
    if len(plain) > _MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        return digits(plain)
    return cn2an.an2cn(plain)


def digits(text: str) -> str:
    """Says each digit by itself and leaves out what parts them."""
    return re.sub(r"[^零一二三四五六七八九点]", "", text.replace(".", "点").translate(_DIGITS))


def _date(match: Match) -> str:
    return f"{digits(match[1])}年{number(str(int(match[2])))}月{number(str(int(match[3])))}日"


def _time(match: Match) -> str:
    hour, minute = number(str(int(match[1]))), match[2]
    if minute == "00":
        return f"{hour}点"
    return f"{hour}点{digits(minute) if minute[0] == '0' else number(minute)}分"


def _money(match: Match) -> str:
    amount = match[2].rstrip("0").rstrip(".") if "." in match[2] else match[2]
    return f"{number(amount)}{match[3] or ''}{_CURRENCIES[match[1]]}"


def _rules(*rows: tuple[str, str | Callable[[Match], str]]) -> list[Rule]:
    return [(re.compile(pattern), said) for pattern, said in rows]


_UNIT_NAMES = "|".join(map(re.escape, sorted(_UNITS, key=len, reverse=True)))

RULES = _rules(
    (r"(?<![\d.])(?:\+\d{1,3}[ -]?)?1\d{2}[ -]?\d{4}[ -]?\d{4}(?!\d)", lambda m: digits(m[0])),
    (r"(?<![\d-])0\d{2,3}-\d{7,8}(?![\d-])", lambda m: digits(m[0])),
    (r"(?<!\d)\d{4}(?:[ -]\d{4}){3}(?![\d-])", lambda m: digits(m[0])),
    (r"(?<!\d)(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?!\d)", _date),
    (r"(?<!\d)(\d{4})(?=年)", lambda m: digits(m[1])),
    (r"(?<![\d:])([01]?\d|2[0-3])[:：]([0-5]\d)(?![\d:])", _time),
    (r"(?<![\w.])\d+(?:\.\d+){2,}", lambda m: "点".join(map(number, m[0].split(".")))),
    (rf"({_NUM}%?)(?:-|\s?[–~～]\s?)(?={_NUM})", r"\1到"),
    (rf"([{''.join(_CURRENCIES)}])\s?({_NUM})\s?([万亿]+)?", _money),
    (rf"({_NUM})%", lambda m: f"百分之{number(m[1])}"),
    (rf"({_NUM})‰", lambda m: f"千分之{number(m[1])}"),
    (
        r"(?<![\d/])(\d{1,3})/(\d{1,3})(?![\d/])",
        lambda m: f"{number(m[2])}分之{number(m[1])}",
    ),
    (
        rf"({_NUM})\s?({_UNIT_NAMES})(?![A-Za-z²/])",
        lambda m: f"{number(m[1])}{_UNITS[m[2]]}",
    ),
    (r"(?<![\d.])2(?=[个位只条张本次种天岁件块])", "两"),
    (r"\s*(?:<=|≤)\s*", "小于等于"),
    (r"\s*(?:>=|≥)\s*", "大于等于"),
    (r"\s*(?:!=|≠)\s*", "不等于"),
    (r"\s*(?:[-=]>|→|⇒|➜)\s*", "，"),
    (r"(?<=[\w)])\s*<\s*(?=[\w(])", "小于"),
    (r"(?<=[\w)])\s*>\s*(?=[\w(])", "大于"),
    (r"(?<=[\w)])\s*={1,3}\s*(?=[\w(-])", "等于"),
    (r"(?<=\d)\s*\+\s*(?=\d)|(?<=\w)\s+\+\s+(?=\w)", "加"),
    (r"\s*[×]\s*|(?<=\d)\s*\*\s*(?=\d)", "乘以"),
    (r"\s*÷\s*", "除以"),
    (r"(?<=\d)\s+[-−]\s+(?=\d)", "减"),
    (r"(?<![\w.)-])[-−](?=\d)", "负"),
    (r"(?:≈|~|～)\s?(?=\d)", "约"),
    (r"²", "平方"),
    (r"³", "立方"),
    (r"&", "和"),
    (r"(?<=\w)@(?=\w)", AT),
    (r"(?<=[A-Za-z0-9]{2})\.(?=[A-Za-z]{2})", DOT),
    (_NUM, lambda m: number(m[0])),
)
"""Applied in this order."""
