// Places, weather, plants and animals.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kNatureWords = R"(
class home.child word
a small house, a cozy cottage, a tall apartment building, a little yellow house, a house with a red
door, an old farmhouse, a brick house, a houseboat, a white house, a stone cottage, a little house
with a garden, a tiny flat above a bakery, a blue house, a wooden cabin, a house full of books, an
old windmill, a lighthouse
class house.child word
a small house, a cozy cottage, a little yellow house, a house with a red door, a brick house, a
white house, a blue house, a house full of books, a wooden house, a house with a big garden
class home.animal word
a cozy burrow, a hollow tree, a warm den, a small cave, a nest of leaves, a snug hole under an oak,
a hut made of twigs, a little house of bark, an old log, a mossy den, a cottage made of mud and
straw, a tunnel under the roots
class near.child word
near the park, by the river, at the edge of town, on a quiet street, near the sea, on a hill, by a
lake, next to a forest, in a small village, in a busy city, beside an orchard, at the end of a long
lane, near a big field, across from the school, behind the library, close to the train station, by
the harbor
class near.animal word
by the river, at the edge of the forest, near a quiet pond, on a sunny hill, by a lake, deep in the
woods, beside a meadow, at the foot of a mountain, next to a waterfall, in a green valley, among the
pines, near a field of clover, by a winding stream
class place.child fields at
the park | at the park
the garden | in the garden
the beach | on the beach
the river | by the river
the meadow | in the meadow
the playground | at the playground
the woods | in the woods
the pond | by the pond
the field | in the field
the orchard | in the orchard
the backyard | in the backyard
the lake | by the lake
the schoolyard | in the schoolyard
the village square | in the village square
the old mill | by the old mill
the hill | on the hill
the fountain | by the fountain
the stream | by the stream
class place.animal fields at
the meadow | in the meadow
the river | by the river
the pond | by the pond
the clearing | in the clearing
the hill | on the hill
the berry patch | in the berry patch
the old oak | under the old oak
the stream | by the stream
the waterfall | by the waterfall
the lake | by the lake
the riverbank | on the riverbank
the valley | in the valley
the big rock | by the big rock
the beaver dam | near the beaver dam
class shop word
bakery, bookshop, toy store, flower shop, market, grocery store, library, post office, barbershop,
pet shop, candy store, hardware store, fish market, shoe store, antique shop, bicycle shop
class trip word
zoo, farm, museum, aquarium, circus, seaside, mountains, fair, castle, lighthouse, planetarium,
water park, big city, botanical garden, harbor
class when word
One morning, One day, One afternoon, One sunny day, One bright morning, One warm afternoon, One
Saturday, One Sunday, One spring morning, One summer day, Early one morning, One quiet afternoon,
One fine day, One Monday, One Friday afternoon, One lovely morning, One cloudy day, One autumn
afternoon
class sunny_when word
One sunny morning, One sunny day, One warm afternoon, One bright summer day, One spring morning, One
fine morning, One hot afternoon, One golden afternoon, One clear day, One beautiful day, One mild
morning, One Saturday in May
class snowy_when word
One snowy morning, One cold winter day, One frosty morning, One white winter morning, One icy day,
One chilly afternoon, One snowy Saturday, One December morning, One January day, One quiet snowy day
class rainy_when word
One rainy morning, One gray afternoon, One wet day, One drizzly morning, One rainy Sunday, One
stormy day, One dark rainy afternoon, One foggy morning
class windy_when word
One windy day, One breezy morning, One blustery afternoon, One windy Saturday, One gusty autumn day,
One bright and windy morning, One March afternoon
class night_when word
One night, One evening, One dark night, One clear night, One warm evening, One summer night, Late
one evening, One starry night, One autumn night
class flower noun
rose, daisy, tulip, sunflower, daffodil, lily, poppy, violet, pansy, marigold, bluebell, buttercup,
orchid, peony, iris, snowdrop, carnation, geranium, crocus, cornflower, snapdragon, begonia, lupine,
aster, lilac, camellia, hollyhock, forget-me-not, dahlia, hyacinth, primrose, zinnia, petunia,
foxglove
class tree noun
oak, maple, pine, willow, birch, elm, apple tree, pear tree, cherry tree, chestnut tree, fir, beech,
cedar, plum tree, linden, spruce, poplar, hazel, hawthorn, sycamore, larch, alder, rowan, mulberry
tree, olive tree, palm tree, walnut tree
class plant noun
sunflower, tomato plant, bean plant, rose bush, pumpkin vine, strawberry plant, lemon tree, tulip,
pea plant, cactus, lavender bush, daisy, sweet corn plant, pepper plant, melon vine, fern, geranium
class bird noun
robin, sparrow, bluebird, finch, wren, swallow, dove, blackbird, lark, starling, thrush, cardinal,
goldfinch, chickadee, canary, nightingale, titmouse, woodpecker, kingfisher, hummingbird, warbler,
cuckoo, oriole, jay, nuthatch, magpie
class big_bird noun
crow, owl, heron, swan, goose, pelican, eagle, hawk, stork, seagull, peacock, flamingo, raven,
magpie, turkey
class bug noun
earwig, mayfly, mosquito, glowworm, centipede, water strider, tiny fly, katydid, ladybug, butterfly,
beetle, grasshopper, cricket, caterpillar, ant, snail, bee, firefly, dragonfly, moth, spider,
bumblebee, worm, inchworm
class pet noun
puppy, kitten, rabbit, hamster, parrot, guinea pig, dog, cat, turtle, canary, ferret, pony
class fur word
black, white, gray, brown, orange, striped, spotted, golden
class chick noun
chick, duckling, gosling, baby swan, baby goose, baby duck
class loose_pet noun
puppy, kitten, rabbit, hamster, guinea pig, dog, cat, ferret, beagle, poodle, terrier, gerbil
class barn noun
cow, horse, sheep, goat, pig, hen, rooster, duck, donkey, lamb, goose, turkey, pony, calf, foal
class zoo_animal noun
jaguar, cheetah, chimpanzee, orangutan, llama, meerkat, parrot, sloth, anteater, armadillo, polar
bear, pelican, lion, tiger, elephant, giraffe, zebra, monkey, penguin, bear, hippo, rhino, camel,
kangaroo, panda, flamingo, gorilla, ostrich, crocodile, leopard, seal, walrus, lemur, tortoise
class gentle_animal noun
elephant, giraffe, zebra, monkey, hippo, rhino, camel, kangaroo, panda, gorilla, lemur, chimpanzee,
orangutan, moose, llama, antelope, reindeer, yak, donkey, tapir
class sea_animal noun
seagull, sea urchin, sardine, swordfish, stingray, manatee, porpoise, hermit crab, crab, starfish,
dolphin, whale, octopus, seal, fish, jellyfish, sea horse, lobster, turtle, shrimp, clam, eel, squid
class wild noun
fox, rabbit, squirrel, hedgehog, deer, badger, chipmunk, otter, raccoon, beaver, mole, frog, toad,
lizard, weasel
class tiny_animal noun
mouse, hedgehog, chipmunk, duckling, baby rabbit, frog, turtle, baby squirrel, mole, shrew, newt,
lizard, gosling, dormouse
class weather word
The sun was shining, The sky was blue, A soft wind was blowing, The birds were singing, White clouds
sailed by, The air smelled of flowers, The grass was still wet with dew, Bees hummed in the clover,
The leaves rustled
class sky word
stars, clouds, planets, fireflies, swallows, moths, snowflakes, bats
class season word
spring, summer, autumn, winter
class dark_place word
cave, cellar, tunnel, hollow tree, old barn, thick forest, mine, shed, empty house, old mill, ruin
)";

}  // namespace flashstep
