"""Word lists of the small tasks and the rhyming lines of the stories.

The tokenizer of the shipped checkpoint is trained so that each of these words is one token after a space; the
sizes that `tasks.py` plans with rely on that, and a test checks it.
"""

from __future__ import annotations

NAMES: tuple[str, ...] = tuple(
    """
    Ada Agnes Alba Alma Amos Anna Anton Arlo Asha Astrid Aziz Bea Bela Boris Bram Bruno Carla Cato Celia Chen Clara
    Cora Cyrus Daisy Dana Daria Dario Dina Dora Edda Edgar Edith Elena Elias Elsa Emil Enzo Erik Esme Esther Ezra
    Fatima Felix Fiona Flora Franz Freya Gala Gideon Gita Greta Gus Hana Hanna Hector Heidi Helga Hilda Hugo Ida Igor
    Ilse Imre Ines Ingrid Irma Isak Ivan Ivy Jada Jana Jasper Jonas Judith Juno Kai Karin Katya Kenji Kira Klaus Lars
    Leila Lena Leo Lev Linus Lola Lorenz Lotte Lucia Ludo Luna Lydia Mabel Magda Malik Marco Marta Matteo Maya Mei
    Mila Milo Mina Mira Mona Nadia Naomi Nell Nico Nils Nina Noah Nora Odin Olga Olive Omar Orla Oscar Otto Pablo
    Paula Pearl Petra Pia Piet Priya Quinn Rafa Raj Rhea Rita Rolf Rosa Ruben Ruth Sami Sasha Selma Silas Sina Sofia
    Stella Sven Tara Thea Theo Tilda Timo Tina Tobias Tom Tova Uma Una Ursula Vera Viktor Viola Wanda Wilma Xenia
    Yara Yasmin Yuri Zara Zelda Zeno Zita Zora
    """.split()
)
ANIMALS: tuple[str, ...] = tuple(
    "badger bear cat crow deer dog duck fox frog goat goose hare hen heron horse mole mouse otter owl pony".split()
)
ADJECTIVES: tuple[str, ...] = tuple(
    "brave bright calm clever cold cosy gentle green happy little merry old proud quiet quick silver sleepy small "
    "soft tall tiny warm wild wise".split()
)
PLACES: tuple[str, ...] = tuple(
    "barn bridge church coast farm field forest garden gate harbour hill house island lake market meadow mill park "
    "pond river road school tower town valley village wall well".split()
)
VERBS: tuple[str, ...] = tuple(
    "danced dreamed jumped laughed listened looked played ran rested sang sat slept stood swam walked waited".split()
)
PREPOSITIONS: tuple[str, ...] = ("near", "by", "behind", "beside", "above", "below", "past", "around")
THINGS: tuple[str, ...] = tuple(
    "apple basket bell book boat bread button candle chair clock cloud coat coin cup door drum feather flag flute "
    "glass hat key kite ladder lamp lantern leaf letter mirror needle paper pear pencil plum ribbon ring rope shell "
    "spoon stone sugar table thread ticket wagon wheel window".split()
)
DAYS: tuple[str, ...] = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: tuple[str, ...] = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
LETTERS: tuple[str, ...] = tuple("abcdefghijklmnopqrstuvwxyz")
RHYMES: tuple[tuple[str, ...], ...] = (
    (
        "{name} the {animal} sailed out on the sea",
        "And rested a while in the shade of a tree",
        "There came from the garden a {adj} old bee",
        "Oh, who in the world is as happy as me",
    ),
    (
        "{name} the {animal} woke up with the sun",
        "A morning of walking, a morning of fun",
        "Then over the {place} began they to run",
        "They carried it home when the work was all done",
    ),
    (
        "The moon on the {place} was {adj} and bright",
        "The stars came to dance in the {adj} long night",
        "{name} the {animal} was lost in the light",
        "A {thing} in the window, a wonderful sight",
    ),
    (
        "{name} the {animal} walked into the town",
        "And there by the {place} sat quietly down",
        "The king of the {place} had lost his own crown",
        "They wore a fine coat that was {adj} and brown",
    ),
    (
        "There stood by the {place} a {adj} red door",
        "With seven fine shells on the wide wooden floor",
        "{name} the {animal} went down to the shore",
        "They looked for a {thing} and then looked for one more",
    ),
    (
        "The rain at the {place} came down in the spring",
        "{name} the {animal} had started to sing",
        "They found in the meadow a {adj} gold ring",
        "And what will the wind of the {place} now bring",
    ),
    (
        "They opened a {thing} on a {adj} new day",
        "{name} the {animal} came out to play",
        "The path to the {place} was a very long way",
        "They slept for an hour on a bed made of hay",
    ),
    (
        "{name} the {animal} went home to the hill",
        "The wind in the {place} was {adj} and still",
        "They gave him a {thing} from the old water mill",
        "A robin sat {adj} on the wide window sill",
    ),
    (
        "A {thing} in the snow by the {adj} white ground",
        "{name} the {animal} then heard a strange sound",
        "They looked at the {place} and the hills all around",
        "And nobody knew what the {animal} had found",
    ),
    (
        "{name} the {animal} was writing a book",
        "They sat near the {place} in a {adj} dark nook",
        "A fish with a {thing} swam up the cold brook",
        "And all of the village came running to look",
    ),
)
