// Things: toys, tools, clothes, food.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kThingWords = R"(
class toy noun
ball, kite, doll, teddy bear, drum, puppet, robot, yo-yo, wooden train, toy boat, toy car, spinning
top, jump rope, toy horse, stuffed rabbit, stuffed elephant, toy truck, tin soldier, music box,
balloon animal, rag doll, toy airplane, toy bus, bubble wand, hula hoop, pinwheel, stuffed penguin,
toy rocket, toy dinosaur, puzzle, kaleidoscope, toy crane, toy tractor, toy castle, beach ball,
stuffed giraffe, toy whale, toy dragon, marble run
class cuddly noun
teddy bear, stuffed rabbit, stuffed elephant, rag doll, stuffed penguin, stuffed giraffe, stuffed
lion, stuffed owl, stuffed dog, stuffed kitten, toy lamb, toy monkey, toy sheep, sock puppet,
stuffed whale, velvet mouse
class wheeled noun
toy truck, toy car, wooden train, toy bus, toy tractor, wagon, toy wheelbarrow, toy fire engine,
scooter, toy cart
class throw_toy noun
ball, beach ball, rubber ball, soccer ball, tennis ball, leather ball, bouncy ball, woolly ball
class boat_stuff word
bark, twigs, reeds, birch bark, cork, driftwood, pine wood
class game.child verb
play tag, climb trees, chase butterflies, play catch, jump in puddles, play hide-and-seek, roll down
the hill, skip rope, play leapfrog, fly kites, blow bubbles, look for bugs, pick daisies, build
sandcastles, splash in the pond, collect stones, play pirates, race each other, dance in the sun,
swing on the swings, kick a ball, count the clouds, make mud pies, hunt for treasure, play
follow-the-leader, hop like frogs, draw with chalk
class game.animal verb
play tag, climb trees, chase butterflies, jump in puddles, play hide-and-seek, roll down the hill,
play leapfrog, look for bugs, pick daisies, splash in the stream, collect stones, race each other,
dance in the sun, build dams, count the clouds, make mud pies, hunt for treasure, play
follow-the-leader, slide down the bank, roll in the leaves, swing from the branches, hop over logs,
draw in the sand
class hobby.child verb
draw pictures, sing songs, read books, bake cookies, ride bikes, paint, dance, swim, climb trees,
build towers, collect shells, tell jokes, play the drum, feed the ducks, plant flowers, make paper
boats, watch the birds, listen to stories, write poems, ask questions, collect buttons, fly kites,
play soccer, make puppets, solve puzzles, skate, explore, invent games, study bugs, take photos,
whistle tunes, roller-skate
class hobby.animal verb
sing songs, dance, swim, climb trees, dig tunnels, collect shells, tell jokes, pick berries, watch
the clouds, listen to stories, ask questions, explore, collect acorns, roll in the grass, whistle
tunes, splash in puddles, chase butterflies, run through the meadow, nap in the sun, weave baskets,
invent games, slide down muddy banks, hum little tunes, gather nuts, hide in the tall grass, skip
stones
class small_find noun
shell, button, marble, feather, pebble, pine cone, coin, key, acorn, bell, ribbon, bead, bottle cap,
gemstone, silver ring, chestnut, thimble, crystal, magnet, stamp, medal, whistle, seashell,
four-leaf clover
class keepsake noun
necklace, bracelet, ring, music box, watch, locket, silver spoon, teacup, photo, lantern, compass,
pocket knife, brooch, medal, fountain pen, snow globe, vase, jewelry box, hand mirror, painted fan
class breakable noun
vase, teapot, plate, bowl, mug, flower pot, glass jar, lamp, picture frame, pitcher, sugar bowl,
snow globe, teacup
class clothing noun
hat, scarf, coat, sweater, jacket, cap, raincoat, apron, dress, shirt, cape, vest, poncho, hood,
bonnet
class tool noun
hammer, rake, shovel, broom, ladder, bucket, rope, saw, paintbrush, wrench, basket, net, brush, mop,
watering can
class gift noun
card, drawing, bracelet, scarf, cake, picture frame, paper flower, kite, necklace, basket, candle,
birdhouse, quilt, pillow, puppet, crown, mug, bookmark, storybook, song, flute, paper lantern, hat,
pincushion
class craft fields stuff
paper boat | paper
birdhouse | wood
kite | paper and string
paper crown | gold paper
mask | cardboard
bowl | clay
bracelet | beads
puppet | old socks
spoon | wood
scarf | yarn
basket | straw
lantern | paper
picture frame | shells
bookmark | ribbon
necklace | acorns
mobile | feathers and twigs
windmill | wood
toy dragon | clay
star | straw
cushion | cloth
mug | clay
whistle | bark
wreath | leaves
blanket | wool
class instrument noun
drum, flute, violin, guitar, piano, trumpet, harp, tambourine, harmonica, xylophone, banjo,
recorder, ukulele, cello, accordion, bell, triangle, clarinet
class collectible noun
stamp, postcard, key, bottle cap, cork, map, sticker, spoon, ticket, seashell, rubber band, pencil,
old coin, badge, envelope, eraser, button, magnet, tin soldier, paper clip, bookmark, toy animal,
playing card, comic book, ribbon, glass bead, lid, crayon, candle stub, ring
class natural noun
acorn, pebble, feather, pine cone, seed, shell, chestnut, leaf, twig, walnut, berry, thorn, petal,
flat stone, fern, mushroom, beechnut, hazelnut, snail shell, seed pod, river stone, lump of amber,
bit of bark, blade of grass
class book_topic word
comets, mummies, tigers, trees, magnets, rivers, Vikings, cowboys, clouds, detectives, elves,
giants, frogs, fossils, kites, a clumsy wizard, a talking parrot, a stolen crown, a haunted mill,
the North Pole, pirates, dragons, trains, the moon, whales, dinosaurs, castles, knights, a lost
bear, bees, volcanoes, the sea, a brave mouse, robots, wolves, a magic tree, explorers, faraway
islands, the stars, horses, polar bears, a lonely giant, submarines, a flying carpet, an inventor, a
tiny village, penguins, the jungle, the desert, rockets
class container noun
box, basket, bag, jar, bucket, chest, pot, drawer, tin, sack, crate, suitcase, backpack, cupboard
class party_spot word
behind the sofa, behind the curtain, behind the door, under the stairs, under the big table, in the
closet, behind the piano
class hiding_spot.child word
under the bed, behind the sofa, under the kitchen table, behind the curtain, in the laundry basket,
in the toy box, behind the bookshelf, under a blanket, in the closet, under the stairs, behind the
door, in a coat pocket, under the rug, in the bathtub, behind the piano, inside an old boot, under a
pillow, in the bread box, behind the clock, under the armchair
class outdoor_spot word
behind the big tree, under a pile of leaves, under the bench, behind the shed, in the wheelbarrow,
in the flower bed, under the porch, behind the rose bush, in the tall grass, next to the fence,
under the hedge, behind a rock, in a puddle, between the roots, beside the path, under the bridge
class hiding_spot.animal word
under the roots, behind the big rock, in the hollow log, behind the ferns, under a pile of leaves,
in the tall grass, behind the old oak, under the thorn bush, in the reeds, inside the den, under a
mossy stone, behind the log pile, between the toadstools, at the bottom of the burrow, under the
willow, among the brambles
class color word
red, blue, green, yellow, purple, orange, pink, white, brown, golden, silver, gray, turquoise,
violet, black, crimson, pale blue, dark green, rosy, lilac, bright red, sky-blue
class small word
little, small, tiny
class big word
big, large, huge, enormous, giant, great
class pretty word
pretty, lovely, beautiful, wonderful, charming, fine, splendid, dainty, delightful
class shiny word
shiny, sparkly, glittering, gleaming, bright, polished, glowing, shimmering
class soft word
soft, fluffy, fuzzy, cozy, woolly, warm, silky, furry, velvety, cuddly
class old word
old, dusty, worn, faded, rusty, ancient, crooked, creaky
class yummy word
delicious, tasty, yummy, sweet, wonderful, lovely, heavenly
class material word
wood, paper, clay, wool, straw, cardboard, cloth, tin, glass, felt, yarn, string, bark, wax
class fruit noun
apple, pear, peach, plum, orange, banana, mango, apricot, melon, lemon, fig, cherry, kiwi,
grapefruit, tangerine, strawberry, pineapple, coconut, nectarine
class berry noun
strawberry, raspberry, blueberry, blackberry, cranberry, gooseberry, elderberry, mulberry,
huckleberry
class vegetable noun
carrot, potato, tomato, onion, pumpkin, cabbage, turnip, beet, radish, cucumber, pepper, leek,
squash, zucchini, parsnip, eggplant
class giant_vegetable noun
pumpkin, cabbage, turnip, beet, radish, squash, melon, carrot, parsnip, cucumber
class treat noun
cookie, muffin, cupcake, pancake, pie, doughnut, waffle, biscuit, brownie, gingerbread man,
lollipop, candy cane, ice cream cone, cinnamon bun, scone, jam tart, apple turnover, honey cake,
caramel, marshmallow
class bake noun
cake, pie, loaf of bread, honey cake, carrot cake, lemon cake, apple pie, cherry pie, plum tart,
berry pie, banana bread, chocolate cake, gingerbread house, peach cobbler, walnut cake
class soup word
spinach soup, celery soup, leek soup, chestnut soup, asparagus soup, turnip soup, fish soup, nettle
soup, tomato soup, pumpkin soup, noodle soup, carrot soup, onion soup, mushroom soup, potato soup,
bean soup, pea soup, vegetable stew, corn chowder, lentil soup, barley soup, cabbage soup
class drink word
warm milk, hot cocoa, lemonade, apple juice, peppermint tea, orange juice, warm cider, berry juice,
honey tea, cold water, ginger tea, grape juice, chamomile tea, vanilla milk
class snack word
apple slices, cheese and crackers, bread and jam, nuts and raisins, carrot sticks, popcorn, toast
with honey, warm rolls, berries and cream, rice cakes, sandwiches, dried figs, oatmeal cookies,
pretzels, bananas, corn bread, peanut butter toast, cucumber sandwiches, grapes, melon cubes
class supper word
gnocchi, risotto, ravioli, tacos, burritos, curry, quiche, porridge, goulash, paella, stuffed
peppers, potato salad, macaroni, grilled cheese, toasted sandwiches, egg noodles, lentils, hot dogs,
turkey pie, cauliflower, soup, noodles, pancakes, pizza, fried rice, roasted potatoes, spaghetti,
dumplings, meatballs, omelets, beans and rice, vegetable pie, fish cakes, stew, corn on the cob,
lasagna, baked pumpkin, mashed potatoes
class ingredient word
flour, sugar, butter, eggs, milk, honey, cinnamon, raisins, nuts, cocoa, vanilla, salt, oats, yeast,
lemon juice
class vehicle noun
bus, train, boat, truck, car, tractor, bicycle, ship, wagon, tram, ferry, van, canoe, hot-air
balloon, sailboat
class furniture noun
chair, table, sofa, bed, bench, shelf, lamp, rug, cradle, cupboard, armchair, stool, desk, rocking
chair, wardrobe
class room word
kitchen, bedroom, living room, attic, hallway, playroom, cellar, pantry, study, workshop, sunroom
class number word
two, three, four, five, six, seven, eight, nine, ten, twelve
class shape noun
star, heart, moon, circle, cloud, fish, flower, sun, snowflake, leaf, boat, bird, butterfly, crown
)";

}  // namespace flashstep
