// Plots that happen outdoors: wind, snow, sea, garden and market.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kPlotsOutdoors = R"(
plot kite_stuck child
let tree = tree
let color = color
beat
- {@meet_hero} {He} had a {$color} kite with a long tail.
- {@meet_hero} {G} had made {him} a kite out of paper and string.
- {@meet_hero} {@likes} But nothing was better than flying {his} {$color} kite.
paragraph
- {Windy_when}, {H} ran up the hill with the kite. Up, up, up it went, higher than the birds.
- {Windy_when}, {he} took it to the field. The wind lifted it, and it danced in the sky.
- {Windy_when}, the kite pulled at the string like a puppy. {He} laughed and held on with both
  hands.
beat
- Then a strong wind came. The string slipped out of {his} hand, and the kite flew into a tall
  {$tree}.
- But all at once the wind turned. The kite dived and got stuck in the top of a {$tree}.
- Suddenly the string broke with a snap. The kite sailed away and was caught in the branches of a
  {$tree}.
paragraph
- {H} jumped, but the branch was much too high. {He} threw a stick, and now the stick was stuck,
  too.
- {He} tried to climb the {$tree}, but {he} slid down again. {@sad_face}
- {H} shook the trunk with all {his} might. A few leaves fell down, but not the kite. {@sad_face}
beat
- A {fkind} named {F} came by and looked up. "{Ohno}," said {F}. "Is that your kite?"
- Just then, a {fkind} named {F} came along with a {pet}. "What are you looking at?" {fhe} asked.
- {N} was working in the garden and heard {him}. "Is something wrong?" {nhe} called. A {fkind} named
  {F} came running, too.
paragraph
- "I have a {idea_word}," said {F}. "You hold me up, and I will reach for the string."
- "We need a long stick," said {F}. {Fhe} ran off and came back with a broom.
- "If you climb on the bench, and I hold it still, you can reach it with my umbrella," said {F}.
beat
- They tried once, and they tried twice. The third time, the kite came down like a big {$color} leaf.
- It was not easy. They wobbled and giggled. But at last the kite fell right on top of them.
- They stretched and stretched. Then there was a little pull, and the kite was free.
paragraph
- It had a hole in its side. "That is easy to fix," said {F} and took some tape out of {fhis}
  pocket.
- One corner was torn, but {F} knew how to mend it with paper and glue.
- The tail was gone. So {F} gave {H} {fhis} own {color} ribbon for a new one.
beat
- Soon the kite was in the air again. They took turns, and the string never slipped again.
- Then they flew it together, one with the string and the other with the tail.
- "You try it first," said {H}. {F} ran, and the kite rose into the blue sky.
paragraph
- {@end_friends}
- {@moral_team}
- {@thanks_h_f} // {@welcome_f} // {@bye_f}
plot snowman child
elder parent
let hat = clothing
beat
- {@meet_hero} {@meet_friend} They waited for the snow every winter.
- {@meet_hero} {@meet_friend} They both loved the winter.
- {@meet_both}
paragraph
- {Snowy_when}, the whole world was white. {H} and {F} put on their boots and ran outside.
- {Snowy_when}, {H} looked out of the window. "Snow!" {he} {cried} and ran to get {F}.
- {Snowy_when}, big soft flakes fell from the sky. {H} and {F} caught them on their tongues.
beat
- "Let us build the biggest snowman in the world," said {F}. They rolled one ball, and another, and
  another.
- They rolled the snow into three big balls and put one on top of the other.
- They worked all morning, until the snowman was taller than both of them.
paragraph
- They gave their snowman a {vegetable} for a nose and {number} buttons for a smile. {H} put {his}
  own {color} {$hat} on him.
- Their snowman got stones for eyes, sticks for arms, and a {$hat} from the closet.
- For the nose they took a carrot, and for the eyes two {small_find.s}. An old {$hat} kept their
  snowman warm.
beat
- "He looks lonely," said {H}. "He needs a friend." But it was getting dark, and they had to go in.
- "Good night, Mister Snow," said {F}. In the night, the wind blew and blew.
- Then it was time for supper. They waved to the snowman and went home.
paragraph
- The next morning, the {$hat} was gone! "Who took it?" asked {H}. {@sad_face}
- The next day, they ran to the snowman. His nose was gone, and his {$hat} was gone, too! {H} and
  {F} stared.
- When they came back the next day, the snowman had no {$hat}. There were tiny tracks in the snow.
beat
- They followed the tracks, past the fence and behind the shed. There, in the {$hat}, lay a
  {tiny_animal}, fast asleep.
- {F} pointed to the tracks. They led to a {tree}. Under it lay the {$hat}, and in it slept a
  {tiny_animal}.
- Behind a bush they found the {$hat}. It moved! A {tiny_animal} looked out and shivered.
paragraph
- "It was cold," {H} {whispered}. "It needs the {$hat} more than our snowman does."
- "Poor little thing," {F} {whispered}. "Let it keep the {$hat}. We can make a new one."
- "Shh," said {H}. "Do not wake it. It is so cold out here."
beat
- So they put some hay around it and went away on their toes. The snowman got a bucket for a new
  hat, and he looked very fine.
- They brought some seeds and nuts. Then they made the snowman a crown of pine cones.
- They covered it with {soft} moss. And the snowman? He got a flower pot on his head, and it made
  them laugh.
paragraph
- {@moral_kind}
- {@end_day}
- Then they went inside and drank {drink}. {@end_day}
plot sandcastle child
elder kin
beat
- {@meet_hero} In the summer, {he} went to the sea with {G}.
- {@meet_hero} {He} lived far from the sea. But one summer, {G} took {him} to the beach.
- {Sunny_when}, {H} and {G} went to the beach. {H} was a {trait} {kind}, and {he} had never seen the
  sea before.
beat
- {He} took {his} {color} bucket and began to build a castle right away.
- {He} liked the waves and the {shiny} shells, but most of all {he} liked the sand.
- There were {shiny} shells everywhere, and the sand was warm under {his} feet.
paragraph
- {He} built {number} towers and a deep moat. {He} pressed shells into the walls and put a white
  feather on top.
- It was the finest castle {he} had ever built. It had a gate, a bridge, and a tower with a flag on
  it.
- {He} dug and patted and smoothed. Soon there stood a castle with high walls and a tiny garden of
  seaweed.
beat
- Then a big wave came. Swoosh! When it rolled back, there was only a bump in the sand.
- But the sea came closer and closer. One wave, two waves, three, and the castle was gone.
- {H} turned around to get one more shell. When {he} looked back, a wave had washed it all away.
paragraph
- {@sad_face} "My castle!" {he} {cried}.
- "That is not fair!" {H} {cried}. {@sad_face}
- "I worked on it all day," {he} {sighed}. {@sad_face}
beat
- A {fkind} stood there with a {color} shovel. "The sea always does that," {fhe} said. "My name is
  {F}. Do you want to build a new one with me?"
- A {fkind} had seen it. "It was so {pretty}," {fhe} said. "I am {F}. I know a trick. You have to
  build it farther up."
- "You know what?" said a voice. It was a {fkind} named {F}. "The sea wanted to play with you. Let
  us build one that even the sea cannot reach."
paragraph
- {@yes_h} So they dug and carried and built, far away from the water.
- {H} wiped {his} eyes and nodded. This time they started higher up, where the sand was dry, and
  they carried water in the bucket.
- {H} looked at {F} and began to smile. Four hands are faster than two, and soon a new castle grew
  out of the sand.
beat
- The new castle was twice as big as the old one. A little {sea_animal} came by and looked in at the
  gate.
- It had {number} towers, a wall all around, and a secret tunnel where their hands met.
- When it was done, they put two {small_find.s} on the highest tower, one for {H} and one for {F}.
paragraph
- {G} took a photo of the castle and of the two builders. {@eat_together}
- "What a {pretty} castle!" said {G}. "The king and the queen of the beach must be hungry."
  {@eat_together}
- The waves came close, but they did not reach it. {H} and {F} laughed at the sea and ran into the
  water.
beat
- {@moral_try}
- {@moral_team}
- {@end_friends}
plot garden_seeds any
let plant = plant
elder kin
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} always wanted everything right now.
- {@meet_hero} Waiting was the hardest thing in the world for {him}.
maybe
- {@aside}
paragraph
- {When}, {G} gave {him} a {small} brown seed. "It will be a {$plant} one day," said {G}. "But you
  must take good care of it."
- {When}, {H} found a {small} seed in {his} pocket. "What is it?" {he} {asked}. "It is a {$plant},
  fast asleep," said {G}. "You have to wake it."
- One day in spring, {N} put a seed into {his} hand. "If you are patient, you will have a {$plant},"
  {nhe} said.
beat
- {H} dug a hole, put the seed in, and covered it {carefully}. {He} gave it some water. Then {he}
  sat down to watch.
- {He} planted it in a sunny spot and watered it. "Now grow!" {he} {said}.
- {He} made a hole with {his} thumb, put in the seed, and sang a song to it.
paragraph
- The next day there was nothing but earth. The day after, there was still nothing.
- {He} looked after {minutes}. {He} looked before supper. {He} looked first thing in the morning.
  Nothing!
- {Days} went by, and nothing happened. "It does not like me," {H} {sighed}.
beat
- "Maybe I should dig it up and see," {H} said. // "Oh no," said {G}. "A seed works in the dark. It
  needs sun, water, and time."
- "It is broken!" {he} {cried}. // "No," said {G} {softly}. "It is growing its roots first. You just
  cannot see it yet."
- {He} wanted to give up. // "{Rule_word}," said {G}. "Good things grow slowly."
paragraph
- So {H} watered the seed every morning. {He} pulled out the weeds and chased away the {bug.s}.
- So every day {he} brought a little water, and every day {he} told the seed a story.
- So {H} waited. {He} made a small fence of sticks around the spot, so that nobody would step on it.
maybe
- When the nights were cold, {he} covered the spot with leaves.
- When it rained too hard, {he} held a big leaf over it.
- A {bird} wanted to eat the seed, but {H} gave it some crumbs and it flew away.
paragraph
- Then, one morning, a tiny green tip looked out of the earth. "{Hooray}!" {H} {cried}.
- And one day, there it was, a {small} green leaf no bigger than a {bug}. {@glad_face}
- And then, after a night of warm rain, two green leaves were there. {H} danced around them.
beat
- It grew and grew. In the summer, it was a {pretty} {$plant}, taller than {H}.
- Week by week it grew bigger, until it was the most beautiful {$plant} in the whole garden.
- By the end of the summer, everyone came to see the {$plant}. Even {N} was {surprised}.
paragraph
- {@moral_patience}
- {@proud_g} // {@moral_patience}
- And it gave {H} {number} new seeds. {He} gave one of them to {F}. "You must be patient," {he}
  said. "I will show you how."
plot cart_stuck any
let load = vegetable
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} was small, but {he} always wanted to help.
- {@meet_hero} Everyone said that {he} was too small for big jobs.
paragraph
- {Rainy_when}, {N} came down the road with a cart full of {$load.s}. The road was muddy after the
  rain. Suddenly the wheel sank in, and the cart was stuck.
- {When}, {N} was pulling a cart of {$load.s} to the market. The cart rolled into a deep hole and
  would not come out again.
- {When}, {H} heard someone call for help. {N} stood beside a big cart of {$load.s}. It was stuck in
  the mud.
beat
- {N} pulled and pulled, but the cart did not move.
- {N} pushed from behind. {Nhe} pulled from the front. Nothing helped.
paragraph
- {@can_i_help_h} // "You are very kind," said {N}, "but you are too small." {H} pushed anyway. The
  cart moved a tiny bit and rolled back.
- "I will push!" said {H}. {He} pushed so hard that {his} face turned red. The cart did not move.
- {@can_i_help_h} // "Let us try," said {N}. They pushed together, and the cart moved a little. Then
  it sank back.
beat
- "We need more help," said {H}. {He} ran off, {fast_as}, and fetched {F}.
- {@think_hard} "One is not enough," {he} said. "Wait here!" And {he} ran to get {F}.
- {F} came along the road and saw them. "May I help, too?" {fhe} asked.
paragraph
- They all pushed. The cart moved a little more, but the mud was strong. Then a {barn} came by, and
  a {barn} too, and they all pushed from behind.
- Now they were three, but it was still too heavy. So they called a {barn}, and the {barn} called a
  {barn}.
- With {F} it went better, but not well enough. So {F} called {fhis} {fsibling}, and {H} called
  {his} {sibling}.
beat
- There was only a tiny gap left. "May I push, too?" asked a little {bug}. Everybody laughed, but
  {H} said, "Every push helps."
- Last came a {tiny_animal}. "You are so little," said {F}. "I was little, too, and I could still
  help," said {H}. "Come here!"
- "I will count," said {H}. "When I say three, we all push at the same time."
paragraph
- One, two, three! The cart came out of the mud with a loud plop and rolled onto the dry road.
- "Ready? One, two, three!" {H} {cried}. Plop! The wheel was free, and everyone fell into the mud
  and laughed.
- They pushed with all their might. Slowly, very slowly, the wheel turned, and then the cart was
  free!
beat
- "{Hooray}!" they all {cried}. {N} gave each of them a big {$load} to take home.
- {N} thanked them all. That evening they cooked a huge pot of soup from the {$load.s}, and there
  was enough for everyone.
- "I could not have done it without you," said {N}. "And it was your {idea_word}, {H}."
paragraph
- {@moral_team}
- {@moral_help}
plot picnic_rain any
elder kin
let food = snack
beat
- {@meet_both}
- {@meet_hero} {@meet_friend}
maybe
- {@aside}
paragraph
- {Sunny_when}, they packed a picnic. They took {$food}, a bottle of {drink}, and a whole {bake}.
- {Sunny_when}, {F} said, "Let us have a picnic!" They filled a basket with {$food} and {fruit.s}.
- {Sunny_when}, {H} and {F} wanted to have a picnic {place.at}. {G} packed {$food} and {number}
  {treat.s} for them.
beat
- They spread a {color} blanket on the grass. {@fine_weather}
- They walked and walked, until they found the perfect spot under a {tree}.
- {@fine_weather} They found a place with many {flower.s} and sat down.
paragraph
- But before they could take the first bite, a drop fell on {H's} nose. Then came another. Soon it
  was pouring.
- Then a dark cloud came. "Go away, cloud!" {F} {cried}. But the cloud did not listen, and it began
  to rain.
- Suddenly there was a rumble in the sky. Plip, plop! Big drops fell on the blanket, on the basket,
  and on their heads.
beat
- They grabbed everything and ran. The {$food} got wet, and so did they.
- "Our picnic!" {H} {cried}. They put the blanket over their heads and ran home.
- They ran home, {fast_as}. Their ears were wet, and their feet were muddy.
paragraph
- "Now the day is ruined," {F} {sighed}. "I was looking forward to it all week."
- "It is not fair," {H} {sighed}. "Now we cannot have our picnic."
- They stood at the window and looked at the gray sky. Nobody said a word.
beat
- {G} looked at the two wet friends. "Who says that a picnic has to be outside?" {ghe} asked.
- {@think_hard} "Wait!" {he} {cried}. "We can have a picnic inside!"
- Then {F} began to smile. "I have a {idea_word}," {fhe} said. "The rain cannot come in here!"
paragraph
- They spread a dry blanket on the floor. They made a tree out of a chair and a green cloth, and
  they cut {flower.s} out of paper.
- They put the blanket under the table and hung {shape.s} from it. It was like a tent in the forest.
- They built a tent from sheets and pillows. A {color} lamp was the sun, and the rug was the meadow.
beat
- Then they sat down and ate. The rain drummed on the roof, and it sounded like music.
- {G} sang like a {bird}, and they all laughed and ate until the basket was empty.
- They ate {$food} and listened to the rain. It was so cozy that nobody wanted it to stop.
paragraph
- "This is the best picnic ever," said {F}. "No ants!" {H} {replied}, and they laughed.
- "I hope that it rains next time, too," said {H}. {F} nodded with a full mouth.
- When the sun came out again, they did not even notice.
plot baby_bird any
elder kin
let bird = bird
let tree = tree
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} loved all animals, big and small.
- {@meet_hero} {He} liked to listen to the birds.
maybe
- {@aside}
paragraph
- {When}, {H} heard {noise} under a {$tree}. {He} looked down. In the grass sat a baby {$bird}.
- {When}, after a windy night, {H} found a {small} baby {$bird} on the ground. It could not fly yet.
- {When}, something moved in the grass under a {$tree}. It was a baby {$bird}, and it was shaking
  {shook_like}.
beat
- Its nest was high up on a branch. It opened its beak and cried for its mother.
- "Did you fall out of your nest?" {H} {whispered}. The {$bird} looked at {him} with round eyes.
- Far above, in the leaves, {he} could see the nest. The mother flew in circles and called.
paragraph
- {H} wanted to pick it up, but {he} was not sure how. So {he} {hurry.ed} off to get {G}.
- "Do not be afraid," said {H} {softly}. "I will get help." And {he} ran home, {fast_as}.
- {He} stood guard, so that no cat could come near, and called for {G}.
beat
- {G} came with a ladder and a {soft} cloth. "You did well to call me," {ghe} said.
- {G} looked up at the nest. "We must be very gentle," {ghe} said and brought a ladder.
- "We will bring it home," said {G}. "But very gently. It is as light as a feather."
paragraph
- {H} held the {$bird} in the cloth. {He} could feel its tiny heart beat. {G} held the ladder, and
  {H} climbed up, step by step.
- They wrapped the {$bird} in the cloth. {G} climbed up, and {H} handed it to {ghim}.
- {H} climbed up slowly. {His} legs shook a little, but {he} did not look down. {G} stood right
  behind {him}.
beat
- Gently, they put the baby {$bird} back into the nest. {Number} hungry brothers and sisters were
  waiting for it.
- Then the little {$bird} was back in the nest. It shook its feathers and said, "Cheep!"
- In the nest, {number} tiny beaks opened wide. Now the family was together again.
paragraph
- The mother came back at once and fed them all. {H} and {G} watched from far away, {quiet_as}.
- They went away on their toes, and soon the mother sat on the nest. {@glad_face}
- The mother sang a long song from the top of the {$tree}. "I think that she is saying thank you,"
  said {G}.
maybe
- Every day {H} looked up and waved. The babies grew and grew.
- A few weeks later, the young {$bird.s} learned to fly. One of them flew right over {H's} head.
paragraph
- {@moral_help}
- {@moral_kind}
- And each spring, when a {$bird} sang in the {$tree}, {H} thought, "That may be my friend."
plot market_list child
elder grand
let one = fruit
let two = vegetable
let three = flower
beat
- {@meet_hero} Every week {he} went to the market with {G}.
- {@meet_hero} {@likes}
- {@meet_hero} {He} liked to help {G} with everything.
maybe
- {@aside}
paragraph
- {When}, {G} had a sore foot. "Can you go to the market for me?" {ghe} asked. "I need {number}
  {$one.s}, a {$two}, and a {$three}."
- {When}, {G} said, "You are big enough to go to the market alone. Please bring me {number}
  {$one.s}, a {$two}, and a {$three}." {Ghe} wrote it all on a list.
beat
- {H} felt very {proud}. {He} took the basket and the money and skipped down the street.
- "You can count on me," said {H}. {He} took the {color} basket and marched off.
- {H} had never gone alone before. {He} held the basket with both hands and walked very straight.
maybe
- {@on_the_way}
paragraph
- On the way, {he} stopped to look at a {bug}. Then the wind took the list and blew it into the
  river.
- At the bridge, {he} looked down at the {big_bird.s} on the water. Oops! The list fell out of {his}
  pocket and floated away.
- Halfway there, a {loose_pet} ran past and bumped into {him}. The list flew into a puddle, and all
  the words ran together.
beat
- {@sad_face} "Now I do not know what to buy," {he} {sighed}.
- "{Ohno}!" {he} {cried}. "What was on it?" {@sad_face}
- {He} almost turned back. But then {he} stopped. "Maybe I can remember," {he} thought.
paragraph
- {@think_hard} In {his} mind, {he} saw {G} at the table, writing. First came something sweet, then
  something for the soup, and then something for the window.
- {@think_hard} {He} saw the kitchen in {his} mind. What was missing in the fruit bowl? What goes
  into the soup? And what stands by the window?
beat
- "The fruit bowl was empty. {$One.s}!" {he} {cried}. "The soup needs a {$two}. And {G} loves a
  {$three} on the table!"
- "Of course!" {he} {said}. "{$One.s} for the pie, a {$two} for the soup, and a {$three}, because it
  smells so good."
paragraph
- {He} {hurry.ed} to the market and bought it all. {He} counted the money twice, and it was just
  right.
- At the market, {N} packed everything into the basket. "You have a good memory," {nhe} {said}.
- {He} went from stand to stand. {N} gave {him} a {treat} for the way home, because {he} had been so
  polite.
beat
- {G} looked into the basket. "Everything is here," {ghe} said. "But where is the list?" {H} told
  {ghim} the whole story.
- At home, {G} unpacked the basket. "And the list?" {ghe} asked. // "The river has it," said {H},
  "but I had it in my head, too."
paragraph
- {@proud_g} Then they cooked soup together.
- {G} laughed. "Next time we will not need a list at all," {ghe} {said}.
- {@proud_g} And {H} was allowed to put the {$three} in the best vase.
plot fishing_patience any
elder grand
let bird = big_bird
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} could not sit still, not even for a minute.
- {@meet_hero} {He} liked to visit {G}, who lived near a lake.
maybe
- {@aside}
paragraph
- {Sunny_when}, {G} took {him} fishing. They sat down at the edge of the water, and {G} showed {him}
  how to hold the rod.
- {Sunny_when}, {H} and {G} rowed out onto the lake in a {color} boat. "Today you will catch your
  first fish," said {G}.
- {Sunny_when}, {G} said, "Come, let us go fishing." They took two rods, a {container}, and some
  {snack}.
beat
- After {minutes}, {H} asked, "Where are the fish?" // "Wait," said {G}.
- "Is there a fish now?" asked {H}. // "Not yet," said {G}. // "And now?" // "Not yet."
- {H} wiggled the rod. {He} stood up, {he} sat down, and {he} threw a stone into the water.
paragraph
- "The fish can feel you wiggle," said {G}. "Be {quiet_as}, and look around you."
- "Fishing is not only about fish," said {G}. "Sit still, listen, and tell me what you hear."
- {G} did not scold. "When you are quiet, the lake will tell you its secrets," {ghe} {whispered}.
beat
- So {H} sat still. {He} saw a {bug} on a leaf. {He} saw a {$bird} standing on one leg. {He} heard
  the wind in the reeds.
- {H} tried it. First {he} heard only the water. Then {he} heard a {bird}, and far away a frog.
- {H} took a deep breath and looked. Clouds swam in the water, and a turtle slept on a log. {He} had
  never seen that before.
paragraph
- {He} forgot about the fish. And just then, the rod gave a pull!
- {He} was so busy looking that {he} almost missed it. Something pulled at the line!
- An hour went by like a minute. Then there was a splash, and the rod bent down to the water.
beat
- "{G}!" {he} {cried}. "I have one!" Together they pulled, and out came a {shiny} fish.
- {H} held on with all {his} might. Slowly, a {big} silver fish came up.
- {He} pulled, and {G} helped. Up came a {small} fish with golden eyes.
paragraph
- {H} looked at the fish for a long time. Then {he} let it go. "Tell the others about me," {he}
  {said}.
- "What do you want to do with it?" asked {G}. {H} thought about it. "It should go home to its
  family," {he} said and put it back.
- They looked at it, thanked it, and let it swim away. "See you next summer," said {H}.
beat
- {@moral_patience}
- On the way home, {H} was quiet for a long time. "I did not know that a lake has so many secrets,"
  {he} said at last.
- From then on, {H} could sit still, at least when {he} wanted to.
)";

}  // namespace flashstep
