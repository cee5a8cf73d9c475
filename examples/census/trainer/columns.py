"""What is in a census file: the columns in order, the labels, and the values of the categorical columns."""

CSV_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "gender",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income_bracket",
)
LABEL = "income_bracket"
LABELS = ("<=50K", ">50K")
UNUSED = ("fnlwgt",)

GENDER = ("Female", "Male")
RACE = ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White")
# By schooling: `education_num` is the place in this list, from 1.
EDUCATION = (
    "Preschool",
    "1st-4th",
    "5th-6th",
    "7th-8th",
    "9th",
    "10th",
    "11th",
    "12th",
    "HS-grad",
    "Some-college",
    "Assoc-voc",
    "Assoc-acdm",
    "Bachelors",
    "Masters",
    "Prof-school",
    "Doctorate",
)
MARITAL_STATUS = (
    "Divorced",
    "Married-AF-spouse",
    "Married-civ-spouse",
    "Married-spouse-absent",
    "Never-married",
    "Separated",
    "Widowed",
)
RELATIONSHIP = ("Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife")
WORKCLASS = (
    "Self-emp-not-inc",
    "Private",
    "State-gov",
    "Federal-gov",
    "Local-gov",
    "?",
    "Self-emp-inc",
    "Without-pay",
    "Never-worked",
)
VOCABULARIES = {
    "gender": GENDER,
    "race": RACE,
    "education": EDUCATION,
    "marital_status": MARITAL_STATUS,
    "relationship": RELATIONSHIP,
    "workclass": WORKCLASS,
}
