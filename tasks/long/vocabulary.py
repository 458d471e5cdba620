"""The words that long contexts are made of."""

from itertools import product

__all__ = [
    "ADJECTIVES",
    "ADVERBS",
    "INTRANSITIVE",
    "NAMES",
    "NOUNS",
    "PLACES",
    "PREPOSITIONS",
    "TIMES",
    "VERBS",
]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words(
    """
    account acorn actor agreement album anchor angle answer antenna apple apron archive arrow artist
    ashtray atlas attic auction author avenue axle badge bakery balcony ballad bamboo bandage banner
    barge barley barn barrel basin basket battery beacon beaver bell bench berry bicycle blanket blossom
    boat bottle boulder bowl box bracket branch breeze brick bridge broom brush bucket buckle builder
    bulb burrow button cabin cable cactus camel camera canal candle canoe canvas captain caravan carpet
    carriage cart castle catalogue cave cellar chain chair chapel chapter charcoal chart cherry chimney
    chisel circle clerk cliff clock cloud coach coast coat cobbler coin collar colony column comet
    committee compass concert contract copper corner cottage cotton counter courier cradle crane crate
    creek cricket crystal cup curtain cushion dancer deck delivery desert diary dinner diver dock doctor
    dome donkey door dragon drawer drum dune eagle easel editor elbow emblem engine envelope errand
    estate exhibit expert fabric factory falcon farmer feast feather fence ferry fiddle field finch
    fisherman flag flask flute forest forge fountain fox frame freight frost furnace gallery garden
    garment gate ghost giant ginger glacier glove goat gong grain granite grape gravel guard guest guide
    guitar gull hall hammer harbour harp harvest hat hawk hedge helmet herald hermit hill hinge honey
    hook horizon horn horse hotel hunter icicle ink inn instrument invoice iron island ivory jacket jar
    jewel journal journey judge jug kettle key kitchen kite knot label ladder lagoon lake lamp lantern
    lawyer leaf ledger lemon lens letter lever library lighthouse lily limestone lizard lock locomotive
    loom lumber machine magnet mail manager mango mantle manual maple map marble margin market mask
    mason meadow medal melody merchant message meteor mill miner mirror mist model monument moon mosaic
    moth motor mountain mule mural museum musician napkin neighbour nest net newspaper notebook novel
    nurse oak oar observatory ocean office olive onion orange orchard orchestra otter oven owl oyster
    package paddle page painter palace panel paper parade parcel park parrot passenger pasture path
    pavement peach pearl pebble pencil pepper phrase piano picnic pier pigeon pilgrim pillar pillow
    pilot pipe planet plate plaza plough plum poem poet pond portrait postcard potter powder printer
    prism procession puddle pump puppet quarry quilt rabbit radio raft railway rain receipt recipe reed
    regiment report reservoir ribbon riddle ring river road robin rocket roof root rope rose rudder
    ruler sack saddle sailor salmon salt sand sapling satchel saucer scarf schedule scholar school
    screen screw sculptor seal servant shadow shed shelf shell shepherd shield ship shoe shop shore
    shovel signal silk silver sketch sky sleeve slope smith snail snow soldier song spade spark sparrow
    spice spider spindle spoon spring squirrel stable stage stairway stamp star statue steam steeple
    stone stool storm story stove stranger straw stream student summit surveyor swallow swan table
    tailor tale tavern teacher teapot temple tent theatre thimble thorn thread throne thunder ticket
    tide tiger timber tool torch tower trader trail train traveller treasure tree trench tribute trumpet
    trunk tunnel turbine turnip turtle umbrella uncle uniform valley valve vase vault vessel viaduct
    village vine violin visitor volcano wagon waiter wall walnut warden warehouse watch water weaver
    wheat wheel whistle widow willow wind window wing winter wolf wood workshop wreath writer yard zebra
    """
)

ADJECTIVES = _words(
    """
    abandoned amber ancient angry arctic awkward bare bent bitter blank blue bold borrowed brass bright
    brisk broad broken bronze brown busy calm careful careless cheap cheerful circular clean clever
    cloudy clumsy coarse cold common copper costly covered crimson crooked crowded curious curved damp
    dark dear deep delicate dented distant double dry dull dusty eager early eastern elegant empty
    enormous even faded faint fair familiar famous fancy fierce final fine firm flat foggy folded
    foreign forgotten fragile fresh friendly frozen full gentle gilded glad gloomy golden grand grateful
    green grey half handsome hard harmless heavy hidden high hollow honest huge humble idle indigo inner
    iron jolly keen kind large late lazy leather light little local lonely long loose lost loud lovely
    loyal lucky mellow merry mild modern modest muddy narrow nearby neat nervous new noble noisy
    northern odd old open ordinary outer painted pale patient peculiar plain pleasant polished poor
    precious pretty private proud public purple quaint quick quiet rare ready red regular rich rigid
    ripe rough round royal rural rusty sacred scarlet secret serious shallow sharp shiny short shy
    silent silver simple sleepy slender slow small smooth soft solemn solid southern spare square stale
    steady steep stern sticky stiff still strange strict striped strong stubborn sturdy sudden sunny
    sweet swift tall tame tender thick thin thirsty tidy tiny tired torn tough tropical turquoise uneven
    unusual upper useful vast velvet violet vivid warm wary weak wealthy weary western wet white whole
    wicked wide wild windy wise wooden worn yellow young
    """
)

#: Past forms, with an object.
VERBS = _words(
    """
    admired admitted adopted advertised answered arranged asked assembled avoided awarded balanced
    bargained blamed blessed boiled borrowed bought bound brought brushed built buried burned called
    carried carved caught changed chased checked chose claimed cleaned climbed closed collected compared
    completed copied counted covered crossed damaged declined decorated defended delivered described
    designed discovered discussed divided dragged drew dropped dug earned emptied encouraged engraved
    entered examined exchanged explained explored fastened fetched filled finished fixed folded followed
    forgot found framed gathered gave greeted ground guarded guided hauled heard helped hid hired
    identified ignored imported improved inherited inspected introduced invented invited joined judged
    kept kicked knew labelled launched lent lifted lit loaded located lost loved lowered made marked
    measured mended missed mixed mounted moved named needed noticed offered opened ordered overlooked
    owned packed painted passed photographed picked placed planned planted polished poured praised
    prepared printed promised protected pulled pushed raised reached received recognised recorded
    refused remembered removed repaired replaced reported requested rescued restored returned rolled
    sang saved scattered searched sent sewed shaped shared sheltered showed signed sketched sold sorted
    sought split spotted stole stored straightened studied summoned supplied surrounded tasted taught
    tested thanked threw tied touched traced traded translated transported trusted turned unloaded used
    valued visited warned washed watched weighed welcomed wrapped wrote
    """
)

#: Past forms, without an object.
INTRANSITIVE = _words(
    """
    arrived awoke bloomed bowed broke burned climbed collapsed complained cried danced departed
    disappeared dozed drifted echoed emerged escaped fell flickered floated flourished froze gathered
    gleamed glowed grew halted hesitated hurried hummed jumped knelt lamented landed laughed leaned
    lingered listened marched melted murmured nodded paused prospered protested ran reappeared relaxed
    remained rested retired returned rose sailed settled shivered shone sighed slept slipped smiled
    sparkled spoke stood stopped struggled stumbled swam swayed trembled turned vanished waited walked
    wandered whispered withered worked worried yawned
    """
)

ADVERBS = _words(
    """
    abruptly almost always anxiously badly boldly briefly calmly carefully cautiously certainly cheaply
    cheerfully completely constantly correctly deliberately eagerly easily endlessly eventually exactly
    faithfully finally frequently gently gladly gradually happily hastily heavily honestly hurriedly
    instantly kindly lately lightly loudly mostly mysteriously nearly neatly nervously nobly obediently
    occasionally often openly partly patiently perfectly politely poorly possibly privately promptly
    properly proudly publicly quickly quietly rapidly rarely readily recently reluctantly sadly safely
    secretly seldom separately seriously sharply silently simply slowly smoothly softly solemnly
    sometimes steadily strangely suddenly surely swiftly tenderly thoroughly tightly truly usually
    warmly widely wisely
    """
)

PREPOSITIONS = _words(
    """
    above across against along among around before behind below beneath beside between beyond by inside
    near opposite outside over past through toward under within without
    """
)

TIMES = tuple(
    f"{when} {moment}"
    for when, moment in product(
        ("before", "after", "during", "shortly after", "late in", "early in", "long before", "ever since"),
        (
            "the harvest",
            "the first frost",
            "the spring flood",
            "the market day",
            "the long winter",
            "the quiet season",
            "the second meeting",
            "the night watch",
            "the rainy week",
            "the morning shift",
            "the summer fair",
            "the third year",
        ),
    )
)

_BEGIN = ("Al", "Bar", "Cor", "Del", "El", "Fen", "Gar", "Hal", "Is", "Jor", "Kel", "Lor", "Mar", "Nor", "Or")
_MIDDLE = ("a", "be", "da", "i", "la", "mi", "na", "o", "ri", "sa", "ti", "ve")
_NAME_END = ("", "an", "den", "is", "la", "na", "ric", "son", "th", "us")
_PLACE_END = ("bury", "dale", "ford", "ham", "haven", "mere", "mouth", "stead", "ton", "wick")

NAMES = tuple(a + b + c for a, b, c in product(_BEGIN, _MIDDLE, _NAME_END))
PLACES = tuple(a + b + c for a, b, c in product(_BEGIN, _MIDDLE, _PLACE_END))
