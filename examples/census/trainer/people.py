"""The process behind the sample: draws people column by column, and the label from a logistic model of them.

No row comes from a real person or a real file. The label is drawn with

    P(income > 50K) = sigmoid(constant + age + schooling + marriage + hours + gender + workclass + occupation
        + schooling x occupation + age x occupation + country + capital gain + capital loss)
"""

from __future__ import annotations

import numpy as np

from . import columns

# Of the process, not of the rows: the same seed makes the same effects for every sample that is drawn.
_PROCESS_SEED = 1996

# How common an occupation is (log), how schooling and being a man pull to it, what it adds to the logit.
_OCCUPATIONS = {
    "Adm-clerical": (1.2, 0.1, -1.6, -0.2),
    "Armed-Forces": (-4.5, 0.0, 2.0, -0.3),
    "Craft-repair": (0.9, -0.6, 3.0, 0.0),
    "Exec-managerial": (1.0, 0.7, 0.2, 0.8),
    "Farming-fishing": (-0.7, -0.8, 1.8, -0.9),
    "Handlers-cleaners": (0.0, -0.7, 1.6, -0.7),
    "Machine-op-inspct": (0.4, -0.8, 0.6, -0.3),
    "Other-service": (1.0, -0.6, -0.8, -0.9),
    "Priv-house-serv": (-3.0, -0.9, -3.0, -1.8),
    "Prof-specialty": (0.6, 1.3, -0.3, 0.5),
    "Protective-serv": (-1.0, 0.1, 1.6, 0.5),
    "Sales": (1.1, 0.2, 0.1, 0.2),
    "Tech-support": (-0.5, 0.5, -0.2, 0.5),
    "Transport-moving": (0.1, -0.7, 2.2, -0.2),
    "?": (-99.0, 0.0, 0.0, -1.2),
}
_OCCUPATION_NAMES = tuple(_OCCUPATIONS)
_ABROAD = (
    "Mexico",
    "Philippines",
    "Germany",
    "Canada",
    "Puerto-Rico",
    "El-Salvador",
    "India",
    "Cuba",
    "England",
    "Jamaica",
    "South",
    "China",
    "Italy",
    "Dominican-Republic",
    "Vietnam",
    "Guatemala",
    "Japan",
    "Poland",
    "Columbia",
    "Taiwan",
    "Haiti",
    "Iran",
    "Portugal",
    "Nicaragua",
    "Peru",
    "Greece",
    "France",
    "Ecuador",
    "Ireland",
    "Hong",
    "?",
)


def draw(rows: int, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draws `rows` people: their columns, label included, and each one's true P(income > 50K)."""
    people = _people(rows, rng)
    chance = 1.0 / (1.0 + np.exp(-_logit(people)))
    rich = rng.random(rows) < chance
    people["income_bracket"] = np.asarray(columns.LABELS, dtype=object)[rich.astype(int)]
    return people, chance


def _people(rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    age = np.clip(17 + rng.gamma(2.3, 9.5, rows), 17, 90).astype(int)
    gender = np.where(rng.random(rows) < 0.52, "Male", "Female").astype(object)
    male = gender == "Male"
    race = _choice(columns.RACE, [0.01, 0.04, 0.10, 0.01, 0.84], rows, rng)
    education_num = _education(age, rng)
    marital = _marital_status(age, male, rng)
    occupation = _occupation(education_num, male, rng)
    workclass = _workclass(age, occupation, rng)
    idle = workclass == "?"
    occupation[idle] = "?"
    hours = np.where(rng.random(rows) < 0.45, 40, rng.normal(39.0 + 3.0 * male, 12.0, rows))
    hours = hours + 5.0 * (education_num >= 13) - 9.0 * ((age < 22) | (age > 64)) - 6.0 * idle
    gain = (rng.random(rows) < 0.02 + 0.013 * np.maximum(education_num - 7, 0)) * rng.lognormal(8.5, 1.1, rows)
    loss = (gain == 0) * (rng.random(rows) < 0.047) * rng.normal(1870.0, 340.0, rows)
    return {
        "age": age,
        "workclass": workclass,
        "fnlwgt": rng.lognormal(12.0, 0.5, rows).astype(int),
        "education": np.asarray(columns.EDUCATION, dtype=object)[education_num - 1],
        "education_num": education_num,
        "marital_status": marital,
        "occupation": occupation,
        "relationship": _relationship(age, male, marital, rng),
        "race": race,
        "gender": gender,
        "capital_gain": np.minimum(gain, 99_999).astype(int),
        "capital_loss": np.clip(loss, 0, 4_356).astype(int),
        "hours_per_week": np.clip(hours, 1, 99).astype(int),
        "native_country": _native_country(race, rng),
    }


def _education(age: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Years of schooling as the census codes it, 1 to 16: the young have not finished, the old left early."""
    shares = np.array([1, 2, 5, 10, 8, 14, 18, 7, 161, 110, 21, 16, 82, 26, 9, 6], dtype=float)
    level = 1 + np.searchsorted(np.cumsum(shares / shares.sum()), rng.random(len(age)))
    level = np.where(age > 60, level - rng.integers(0, 3, len(age)), level)
    ceiling = np.select([age < 18, age < 20, age < 22, age < 24], [8, 10, 12, 13], 16)
    return np.clip(level, 1, ceiling)


def _marital_status(age: np.ndarray, male: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    ever = rng.random(len(age)) < 0.9 / (1.0 + np.exp(-(age - 27.0) / 4.5))
    still = rng.random(len(age)) < np.where(male, 0.84, 0.55) - 0.002 * np.maximum(age - 40, 0)
    widowed = rng.random(len(age)) < np.clip((age - 45) / 60.0, 0.01, 0.6)
    apart = _choice(("Divorced", "Separated", "Married-spouse-absent"), [0.78, 0.15, 0.07], len(age), rng)
    together = _choice(("Married-civ-spouse", "Married-AF-spouse"), [0.997, 0.003], len(age), rng)
    return np.select(
        [~ever, still, widowed],
        [np.full(len(age), "Never-married", dtype=object), together, "Widowed"],
        apart,
    ).astype(object)


def _occupation(education_num: np.ndarray, male: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A score per person and occupation, the largest wins: schooling and gender pull to different work."""
    frequency, schooling, men, _ = np.array(list(_OCCUPATIONS.values())).T
    score = frequency + schooling * ((education_num - 10) / 2.5)[:, None] + men * (male[:, None] - 0.5)
    winner = np.argmax(score + rng.gumbel(size=score.shape), axis=1)
    return np.asarray(np.asarray(_OCCUPATION_NAMES, dtype=object)[winner])


def _workclass(age: np.ndarray, occupation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    shares = [0.080, 0.737, 0.041, 0.030, 0.066, 0.006, 0.039, 0.0005, 0.0005]
    workclass = _choice(columns.WORKCLASS, shares, len(age), rng)
    retired = (age > 64) & (rng.random(len(age)) < 0.25)
    owner = np.isin(occupation, ("Farming-fishing", "Exec-managerial", "Craft-repair"))
    owner &= rng.random(len(age)) < 0.12
    return np.select([retired, owner], ["?", "Self-emp-not-inc"], workclass).astype(object)


def _relationship(age: np.ndarray, male: np.ndarray, marital: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    home = (marital == "Never-married") & (rng.random(len(age)) < np.clip((34 - age) / 20.0, 0.05, 0.95))
    married = marital == "Married-civ-spouse"
    alone = _choice(("Not-in-family", "Unmarried", "Other-relative"), [0.66, 0.28, 0.06], len(age), rng)
    return np.select([married & male, married, home], ["Husband", "Wife", "Own-child"], alone).astype(object)


def _native_country(race: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    born_here = rng.random(len(race)) < np.where(race == "Asian-Pac-Islander", 0.35, 0.93)
    shares = np.linspace(3.0, 0.2, len(_ABROAD)) ** 2
    abroad = _choice(_ABROAD, shares / shares.sum(), len(race), rng)
    return np.where(born_here, "United-States", abroad).astype(object)


def _logit(people: dict[str, np.ndarray]) -> np.ndarray:
    age, schooling, hours = people["age"], people["education_num"], people["hours_per_week"]
    married = np.isin(people["relationship"], ("Husband", "Wife"))
    occupation = _index(people["occupation"], _OCCUPATION_NAMES)
    effects = np.random.default_rng(_PROCESS_SEED)
    of_occupation = np.array([pay for *_, pay in _OCCUPATIONS.values()])
    of_pair = effects.normal(0.0, 0.5, (len(columns.EDUCATION), len(of_occupation)))
    of_decade = effects.normal(0.0, 0.3, (10, len(of_occupation)))
    of_country = effects.normal(0.0, 0.4, len(_ABROAD) + 1)
    country = _index(people["native_country"], ("United-States", *_ABROAD))
    owns_company = people["workclass"] == "Self-emp-inc"
    return np.asarray(
        -2.95
        + 2.2 * np.exp(-(((age - 50.0) / 17.0) ** 2)) - 1.2
        + 0.38 * (schooling - 10)
        + np.where(married, 1.7, -1.3)
        + 0.035 * np.clip(hours - 40, -30, 30)
        + 0.25 * (people["gender"] == "Male")
        + 0.6 * owns_company - 0.3 * (people["workclass"] == "Self-emp-not-inc")
        + of_occupation[occupation]
        + of_pair[schooling - 1, occupation]
        + of_decade[np.minimum(age // 10, 9), occupation]
        + of_country[country]
        + np.select([people["capital_gain"] > 7_000, people["capital_gain"] > 0], [5.0, -0.6], 0.0)
        + np.select([people["capital_loss"] > 1_800, people["capital_loss"] > 0], [2.2, -0.8], 0.0)
    )  # fmt: skip


def _choice(names: tuple[str, ...], shares: object, rows: int, rng: np.random.Generator) -> np.ndarray:
    weights = np.asarray(shares, dtype=float)
    return np.asarray(names, dtype=object)[rng.choice(len(names), rows, p=weights / weights.sum())]


def _index(values: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    order = np.argsort(np.asarray(names))
    return np.asarray(order[np.searchsorted(np.asarray(names)[order], values.astype(str))])
