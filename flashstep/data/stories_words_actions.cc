// What is done and said, and how.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kActionWords = R"(
class stroll verb
walk, stroll, wander, skip, march, hike, amble
class hurry verb
run, hurry, rush, race, dash, sprint, scamper, trot
class creep verb
creep, sneak, crawl, climb, squeeze, wriggle
class said word
said
class replied word
said, replied, answered
class asked word
asked, asked, wanted to know
class cried word
cried, called, shouted, exclaimed
class laughed word
laughed, giggled, chuckled, said with a grin, said with a laugh, said with a wink
class whispered word
whispered, murmured, said softly, said quietly, said in a low voice
class sighed word
sighed, said sadly, sniffed, said in a small voice, mumbled, said with a sigh
class hooray word
Hooray, Hurrah, Yay, Yippee, Wow, Wonderful, Look at that
class ohno word
Oh no, Oh dear, Oh my, Goodness, Uh-oh
class happy_as word
as happy as a lark, as happy as could be, as merry as a cricket, as bright as the sun, as pleased as
a cat in the sun, as happy as a duck in a puddle, as cheerful as a songbird
class quiet_as word
as quiet as a mouse, as still as a stone, as silent as snow, as quiet as a shadow, as quiet as the
moon
class fast_as word
as fast as the wind, as quick as a rabbit, as fast as lightning, as quick as a wink, as swift as an
arrow
class brave_as word
as brave as a lion, as brave as a knight, as strong as a bear, as bold as an eagle
class glow_as word
like a tiny star, like a lantern, like gold, like a rainbow, like a jewel, like the moon
class shook_like word
like a leaf, like jelly, like a twig in the wind, like a wet puppy
class storm_sound word
Boom, Crash, Crack, Bang, Rumble
class minutes word
a few minutes, a little while, half an hour, a long time, an hour, what felt like ages
class days word
two days, three days, a week, two weeks, many days, a whole month
class skill.child fields ing fail win tip
ride a bike | riding a bike | the bike wobbled and tipped over | rode all the way down the lane
  | Look far ahead, not at your feet
swim | swimming | the water went right up the nose | swam across the whole pool
  | Kick slowly and breathe
skate | skating | both skates slid in different directions | glided in a big circle
  | Bend your knees a little
juggle | juggling | the balls rolled all over the floor | kept three balls in the air
  | Watch the top of each throw
whistle | whistling | only a puff of air came out | whistled a whole song
  | Make your lips small and round
tie shoelaces | tying shoelaces | the knot fell apart at once | tied a perfect bow
  | Make two loops like rabbit ears
play the flute | playing the flute | the flute only squeaked | played a soft little tune
  | Blow gently, as if cooling soup
play the violin | playing the violin | the violin howled like a cat | played a sweet melody
  | Let the bow move by itself
do a cartwheel | doing a cartwheel | the landing was a bump on the bottom
  | turned a cartwheel on the grass | Put down one hand after the other
climb the rope | climbing the rope | the rope swung and slipped away | climbed to the very top
  | Hold tight with your feet
catch a ball | catching a ball | the ball bounced right off the chest | caught ten balls in a row
  | Keep your eyes on the ball
knit | knitting | the yarn became one big tangle | knitted a warm blue scarf
  | Count each stitch out loud
bake bread | baking bread | the bread came out as hard as a brick | baked a soft golden loaf
  | Give the dough time to rest
paint with watercolors | painting with watercolors | the colors ran into a muddy puddle
  | painted a glowing sunset | Let each color dry first
ski | skiing | the skis crossed and the snow flew | skied down the whole hill
  | Make the tips point to each other
row a boat | rowing a boat | the boat only turned in circles | rowed straight across the lake
  | Pull both oars at the same time
skip rope | skipping rope | the rope caught on a shoe | skipped fifty times without a stop
  | Listen to the rope and jump on the beat
fly a kite | flying a kite | the kite dived straight into the grass
  | made the kite dance in the clouds | Wait for the wind before you let go
write in cursive | writing in cursive | the letters looked like spilled noodles
  | wrote a neat and curly letter | Go slowly and do not lift the pen
walk on stilts | walking on stilts | the stilts tipped to the left
  | marched across the yard on tall stilts | Take small steps and look up
class skill.animal fields ing fail win tip
swim | swimming | the water went right up the nose | swam across the whole pond
  | Kick slowly and breathe
whistle | whistling | only a puff of air came out | whistled a whole song
  | Make your mouth small and round
climb the tall pine | climbing the tall pine | the bark slipped and the ground came close
  | climbed to the very top | Hold tight and take one branch at a time
jump over the stream | jumping over the stream | there was a loud splash
  | jumped right over the stream | Take a long run first
dig a tunnel | digging a tunnel | the tunnel fell in | dug a long and tidy tunnel
  | Pat the walls as you go
weave a basket | weaving a basket | the twigs sprang apart | wove a strong little basket
  | Over and under, over and under
crack nuts | cracking nuts | the nut rolled away down the hill | cracked ten nuts in a row
  | Find the line in the shell first
sing | singing | only a squeak came out | sang a song from start to end
  | Breathe deep, down to your belly
skip stones | skipping stones | the stone went plop and sank | made a stone skip seven times
  | Choose a flat one and throw it low
slide on the ice | sliding on the ice | all four feet went different ways
  | slid in a big smooth circle | Bend your knees a little
float on a log | floating on a log | the log rolled over with a splash
  | floated all the way down the river | Sit still and look straight ahead
somersault | doing somersaults | the landing was a bump in the mud
  | turned three somersaults in a row | Tuck in your chin and roll
class fear word
the dark, thunder, deep water, big dogs, high places, spiders, strange noises, bees, shadows, loud
crowds
class idea_word word
idea, plan, thought, clever idea, bright idea
class rule_word word
Keep trying, Do not give up, Take your time, Be patient, Stay calm, Believe in yourself
class dish_word word
bowl, cup, plate, mug, spoon, spoonful
class body_part word
knee, elbow, ankle, toe, thumb, paw
class bedtime word
cuddled up in bed, lay under a warm blanket, climbed into bed, snuggled into the pillow, curled up
in the soft covers
class dream word
a palace of glass, a ladder to the moon, a whale in a bathtub, a parade of penguins, a city under
the sea, a forest made of candy, a horse with wings, a snowman in the desert, a garden on a cloud, a
friendly giant, a castle on wheels, a river of lemonade, a choir of frogs, an island shaped like a
heart, a clock that ran backward, a bridge made of rainbows, a submarine shaped like a fish, a tower
that touched the sky, a market where everything was free, a circus of mice, a volcano full of jam, a
treehouse as tall as a mountain, a comet with a silver tail, a kingdom of cats, a waterfall of
stars, a dragon who was afraid of mice, a piano with a thousand keys, a sailboat in the clouds, a
wizard with a wooden leg, a queen who lived in a pumpkin, a meadow where it was always summer, a
staircase without an end, an orchestra of crickets, a planet made of cheese, a mermaid with a
violin, an umbrella as big as a village, a caravan of camels, a mirror that could talk, a lantern
that never went out, a school for dragons, an igloo with a chimney, a unicorn
class song_topic word
a goat on a roof, the north wind, a runaway pancake, a proud rooster, the harvest, a lonely
lighthouse, a dancing broom, a snail in a hurry, an old wooden bridge, a thirsty camel, the first
snow, a stubborn mule, a baker and his oven, a teapot without a lid, seven silver swans, the sun,
the sea, a little boat, the stars, friends, the spring, a sleepy bear, the rain, a long road home
class noise word
a crackle, a rattle, a hoot, a growl, a chirp, a click, a groan, a jingle, a hiss, a crunch, a faint
knock, a rustle, a squeak, a thump, a tiny cry, a scratching sound, a soft whimper, a creak, a
tapping sound, a sniffle
)";

}  // namespace flashstep
