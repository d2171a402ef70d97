// Plots that happen at home: lost, broken, made, cooked and tidied.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kPlotsAtHome = R"(
plot lost_cuddly child
elder parent
let toy = cuddly
let spot = hiding_spot
beat
- {@meet_hero} {He} had a {color} {$toy} that went everywhere with {him}.
- {@meet_hero} {His} favorite toy was a {soft} {$toy}. {He} could not sleep without it.
- {@meet_hero} Of all {his} toys, {he} loved one best, a {small} {$toy} with a {color} ribbon.
paragraph
- One evening, it was time for bed, but the {$toy} was gone. {@search}
- One night, {H} got ready for bed and reached for the {$toy}. It was not on the pillow! {@search}
- One evening, {H} wanted to hug the {$toy} good night, but it was not there. {@search}
beat
- {@sad_face} "Where are you?" {he} {whispered}.
- {@sad_face} "I will never find it," {he} {sighed}.
- {@sad_face} It had never been gone before.
paragraph
- {@whats_wrong_g} // "My {$toy} is lost!" said {H}.
- {@whats_wrong_g} // "I cannot find my {$toy}," said {H}. "I have looked everywhere!"
paragraph
- {@comfort_g} Then {ghe} asked, "When did you see it last?" // {H} closed {his} eyes and thought.
  "We were playing pirates," {he} said slowly. "And then we hid from the storm!"
- {@comfort_g} Then {ghe} had an idea. "Let us walk back through your day." // So they walked
  through the whole day, from breakfast to supper. "After lunch we played explorers," {H}
  remembered. "And then I had to hide!"
- "Let us think like a {$toy}," said {G}. "Where would you go, if you were tired after a long day of
  playing?" // {H} giggled. "I would go to our secret place!"
beat
- {He} ran and looked {$spot}. There it was!
- Together they looked {$spot}, and there lay the {$toy}, safe and sound.
- They looked {$spot}. Two shiny button eyes looked back at them.
paragraph
- "You waited for me!" {H} {cried} and hugged the {$toy} tightly. {@thanks_h_g}
- {H} held the {$toy} close. "I will never forget you again," {he} {whispered}.
- "Found you!" {H} {cried}. {@glad_face}
beat
- That night, they both slept very well.
- Soon {H} was fast asleep, with the {$toy} in {his} arms.
- {G} turned off the light, and the two friends fell asleep side by side.
plot broken_thing child
elder kin
let thing = breakable
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} was always running, even inside the house.
- {@meet_hero} {He} liked to play ball, and sometimes {he} forgot the rules.
maybe
- {@aside}
paragraph
- One afternoon, {he} threw a ball in the {room}. "Not in the house," {G} had said many times. But
  the rain was falling, and {H} was bored.
- {When}, {he} raced through the {room} on one leg, then on the other. It was great fun, until {he}
  slipped.
- {When}, {H} pretended to be a knight. {He} swung a wooden spoon like a sword, left and right.
beat
- Crash! The {color} {$thing} fell to the floor and broke into {number} pieces.
- There was a loud crash. {G's} {old} {$thing} lay on the floor in pieces.
- Then came a terrible sound. The {pretty} {$thing} that {G} loved so much was broken.
paragraph
- {@fear_face} "What will {G} say?" {he} thought. {He} pushed the pieces under the rug.
- {H} looked at the pieces. Nobody had seen it. {He} could say that the wind did it, or the cat. But
  {his} tummy felt tight.
- {H} wanted to hide. {He} put the pieces into a {container} and closed it. But {he} could not close
  the bad feeling.
maybe
- At supper, {he} could not eat a single bite.
- {He} tried to play, but the game was no fun anymore.
- {He} tried to read, but the words swam in front of {his} eyes.
paragraph
- At last {H} went to {G}. "I broke your {$thing}," {he} {whispered}. "I was not careful, and I am
  very sorry."
- {H} took a deep breath and went to find {G}. "I have to tell you something," {he} said. "The
  {$thing} is broken, and I did it."
- "{G}," {H} said with a shaking voice, "the {$thing} did not break by itself. It was me. I am
  sorry."
paragraph
- {G} was quiet for a moment. "I am sad about the {$thing}," {ghe} said. "But I am glad that you
  told me the truth. That was brave."
- {G} sat down beside {him}. "Things can be mended," {ghe} said. "The truth is worth more than a
  {$thing}."
- "Oh, {H}," said {G} {softly}. "I loved that {$thing}, but I love you much more. Thank you for
  telling me."
beat
- They got some glue, and together they put the pieces back, one by one. It looked a little crooked,
  but {G} said that now it was even more special.
- They swept the floor together. Then {H} painted a new {$thing} on a piece of paper, and {G} hung
  it on the wall.
- Together they glued it with great care. There was one small hole left, and {G} put a {flower} in
  it.
paragraph
- {@moral_honest}
plot surprise_party child
elder parent
let gift = gift
let cake = bake
let spot = party_spot
beat
- {@meet_hero} {His} birthday was near, and {he} could hardly wait.
- {@meet_hero} Tomorrow was {his} birthday. {He} had counted the days for a whole month.
- {@meet_hero} On {his} birthday, {he} woke up very early and jumped out of bed.
paragraph
- But on the big day, nobody said a word about it. {G} was busy in the {room}. {F}, {his} best
  friend, could not come to play.
- But when the day came, everyone was strange. {G} whispered on the telephone. {F}, {his} best
  friend, only waved and ran away.
- But that day, nobody sang for {him}. {G} sent {him} to the {shop} for some {ingredient}. {F},
  {his} best friend, was not at home.
beat
- "Did they all forget?" {H} thought. {@sad_face}
- {@sad_face} "Maybe they do not like me anymore," {he} thought.
- {H} walked home slowly and kicked a stone. "Nobody remembers," {he} {sighed}.
paragraph
- Then {he} opened the door. The house was dark and {quiet_as}. Suddenly the light went on.
- {He} came home in the afternoon. Everything was still. Something moved {$spot}.
- When {he} pushed open the door, {he} heard {noise} from {$spot}. {He} took one step, and then
  another.
beat
- "Surprise!" everyone {cried}. There were balloons on the wall, and on the table stood a big
  {$cake}.
- "Happy birthday!" they all shouted. {F} jumped out first, and then came {G} with a {$cake} full of
  candles.
- "Surprise!" shouted {F} and {G} and all {his} friends. Paper {shape.s} hung from the ceiling, and
  the {$cake} smelled wonderful.
paragraph
- "You did not forget!" {H} {cried}. // "Forget you? Never!" said {F}. "We have been working on it
  all week."
- "So that is why you were all so strange!" said {H}. // {F} laughed. "It is hard to keep a secret
  from you!"
- {H} put {his} hands to {his} face and laughed and cried at the same time. // "It was so hard not
  to tell you," said {F}.
beat
- {F} gave {him} a {$gift}, made with {fhis} own hands.
- Then {F} handed over a small parcel. In it lay a {pretty} {$gift}.
- There were presents, too. The best one was a {color} {$gift} from {F}.
maybe
- They sang songs, and {H} blew out all the candles at once.
- {H} closed {his} eyes, made a wish, and blew out the candles.
- They {game.ed} in the yard and ate until they were full.
paragraph
- {@end_day}
- {@end_sleep_g}
- It was the best birthday that {H} had ever had.
plot baking any
elder kin
let cake = bake
beat
- {@meet_hero} {He} loved everything that was sweet.
- {@meet_hero} Best of all {he} liked to help {G} in the kitchen.
- {@meet_hero} {@likes}
maybe
- {@aside}
paragraph
- {When}, {G} said, "Let us bake a {$cake} for {N}." // "Oh yes!" {H} {cried} and put on {his}
  apron.
- {When}, {H} wanted to bake a {$cake} for {N}. "I can do it all by myself," {he} {said}. // "I will
  be right here if you need me," said {G}.
- {Rainy_when}, {H} and {G} decided to bake a {$cake} for {N}.
beat
- {He} mixed the {ingredient} and the {ingredient}. {He} stirred until {his} arms were tired.
- They put {ingredient} and {ingredient} into a big bowl. {H} stirred and stirred, and flour flew
  into the air like snow.
- {He} poured in {ingredient} and then {ingredient}. A little fell on the floor, and a little fell
  on {his} nose.
paragraph
- Then {H} tasted the batter and made a face. "It tastes like the sea!" {he} {cried}. {He} had used
  salt and not sugar.
- Soon a strange smell came from the oven. "Oh no!" {H} {cried}. The {$cake} was as black as coal.
- But when the {$cake} came out of the oven, it was as flat as a plate. {H} had forgotten the eggs.
beat
- {@sad_face} "I ruined it," {he} {sighed}.
- "Now we have nothing for {N}," {he} {sighed}. {@sad_face}
- {@sad_face} All that work for nothing!
paragraph
- {G} laughed kindly. "Do you know how many cakes I have spoiled in my life? At least a hundred!
  Come, let us try again."
- "A good cook is someone who tries again," said {G}. "What do we do first?"
- {@comfort_g} Then {ghe} smiled. "We still have plenty of flour," {ghe} said.
beat
- This time {H} read every line of the recipe out loud. {He} measured everything {carefully} and
  watched the clock.
- So they started over. This time {H} did not hurry. {He} counted every spoon and checked everything
  twice.
- They began again from the start. {H} tasted, measured and looked, and {G} kept an eye on the oven.
paragraph
- This time the {$cake} was golden and {soft}. It smelled {yummy}.
- Ding! The second {$cake} was round and brown and perfect.
- And what came out of the oven this time? A {pretty} {$cake} with a golden crust!
beat
- They brought a big piece to {N}. "It is the best {$cake} that I have ever eaten!" {N} {said}.
- {N} tasted it and closed {nhis} eyes. "Who made this?" {nhe} asked. "I did," said {H}, "on the
  second try."
- When {N} saw the {$cake}, {nhe} clapped and laughed. "For me?" {nhe} {cried}. They ate it together
  and drank {drink}.
paragraph
- {@moral_try}
plot messy_room child
elder parent
let lost = small_find
beat
- {@meet_hero} {His} room was the messiest room in the whole house.
- {@meet_hero} {He} never put anything away. {His} toys lay all over the floor.
- {@meet_hero} {He} had so many things in {his} room that nobody could see the floor.
paragraph
- {When}, {G} opened the door and stepped on a {toy}. "Ouch!" {ghe} {cried}. "{H}, please tidy up
  your room."
- {When}, {G} looked in. "Is there a bed in here somewhere?" {ghe} asked. "It is time to clean up."
- {When}, {F} came to play. "Where can I sit?" asked {F}. There was not one free spot.
beat
- "But I like it this way," said {H}. Then {he} wanted to show off {his} {shiny} {$lost}, and it was
  not there.
- "Maybe later," said {H}. Then {he} reached for {his} {color} {$lost}. It was gone, somewhere in
  the big mess.
- {H} wanted to get {his} best {$lost}, but it had vanished under all the things on the floor.
paragraph
- {@think_hard} "I will make it a game," {he} {said}. "The floor is the sea, and I am fishing!"
- "I know!" {he} {said}. "I will be a train, and every toy has to go to its station."
- {H} put on some music. "I will put away ten things before the song is over," {he} {said}.
beat
- First {he} put the books on the shelf. Next {he} put the {toy} and the {toy} into the toy box.
  Then came the clothes.
- One by one, {he} picked up the {toy}, the {toy} and the {clothing}. {He} found a home for each of
  them.
- The {toy} went into the {container}, the {clothing} went into the closet, and an old sandwich went
  into the trash.
maybe
- Under the bed {he} found a {treat} that was as hard as a stone. "Yuck!" {he} laughed.
- {He} even found a library book about {book_topic} that had been missing since {season}.
- Behind the curtain {he} found {number} socks, and none of them matched.
paragraph
- And there, at the very bottom, lay the {$lost}! {@glad_face}
- When the floor was clean, something blinked in the corner. It was the {$lost}!
- Last of all, {he} lifted a pillow, and there was the {$lost}.
beat
- {G} came in and could not believe it. "{What a lovely room|It looks like new}!" {ghe} said. "Now
  there is space to dance." So they danced.
- "Look, {G}!" {he} called. "I found the {$lost}, and I found my room, too!" // {@proud_g}
- {@proud_g} And then they lay on the clean floor and looked at the ceiling, just because they
  could.
paragraph
- From then on, {H} put things back where they belonged. Well, almost always.
- {H} knew now that it is easier to find things when each thing has a home.
- After that, {he} tidied up a little every day, and nothing was lost again.
plot sick_friend any
let soup = soup
beat
- {@meet_both}
- {@meet_hero} {@meet_friend}
maybe
- {@aside}
paragraph
- {When}, {H} waited for {F} {place.at}, but {F} did not come. "That is odd," thought {H}. {He} went
  to look.
- {When}, {F} was not there to play. {H} knocked on {fhis} door. "Who is it?" asked a weak voice.
- {When}, {H} heard a loud sneeze. It was {F}, and {fhis} nose was red.
beat
- {F} was sick in bed. "I have a cold," {fhe} {sighed}. "I cannot come out for {days}."
- "I am sick," said {F}. "My head hurts, and I am so bored."
- {F} lay under {number} blankets and shivered. "I feel terrible," {fhe} {whispered}.
paragraph
- "I will make you feel better," said {H}. {He} {hurry.ed} home and cooked a pot of {$soup}.
- {@think_hard} "{$Soup}!" {he} {cried}. "That always helps." {He} cut and stirred until it smelled
  {yummy}.
- "Stay right there," said {H}. {He} went home, and soon a pot of {$soup} was steaming on the stove.
beat
- {He} carried it over very {carefully}, so that not a drop was spilled. {He} brought a book about
  {book_topic}, too.
- {He} put the soup in a basket, together with a {flower} and a {gift}. The basket was heavy, but
  {he} did not mind.
- {He} picked some {flower.s} for {F}, too. {He} did not stop to play, not even once.
maybe
- {@on_the_way}
paragraph
- {F} ate the whole bowl. "It makes me warm down to my toes," {fhe} {said}.
- {F} tasted the {$soup} and smiled for the first time that day. "It is so good," {fhe} {whispered}.
- "Mmm," said {F}. {Fhe} ate one bowl and then another, and some color came back to {fhis} cheeks.
beat
- Then {H} sat by the bed and told funny stories, until {F} fell asleep.
- They played quiet games, and {H} let {F} win two times.
- {H} sang a song about {song_topic}. {F} closed {fhis} eyes and listened.
paragraph
- After {days}, {F} was well again. {@thanks_f_h}
- Soon {F} could run and jump again. {@thanks_f_h} // {@welcome_h}
- {Days} later, {F} stood at the door, as healthy as ever. "Your soup did it," {fhe} {said}. "And
  your stories."
maybe
- {@play_together}
- {@friends_hug}
- And when {H} caught a cold the next week, can you guess who came with soup?
paragraph
- {@moral_kind}
- {@moral_help}
- {@end_friends}
plot under_the_bed child
elder parent
let pet = loose_pet
let noise = noise
beat
- {@meet_hero} In the daytime, {he} was not afraid of anything. But at night it was different.
- {@meet_hero} {He} was brave in the daytime, but {he} did not like the dark.
- {@meet_hero} {He} had a night light that glowed {glow_as}, because the dark was so very dark.
paragraph
- {Night_when}, {H} lay in bed and heard {$noise}. It came from under the bed!
- {Night_when}, when the house was {quiet_as}, {H} heard {$noise} in {his} room.
- {Night_when}, just as {H} was falling asleep, there was {$noise} under the bed.
beat
- {@fear_face} "What if it is a monster?" {he} thought.
- {@fear_face} {He} pulled the blanket over {his} head.
- "Who is there?" {he} {whispered}. Nobody answered. {@fear_face}
paragraph
- "{G}!" {he} called. {G} came and sat on the bed. "There is a monster in my room," {H} {whispered}.
- {He} ran to {G}. "Something is under my bed," {he} {whispered}.
paragraph
- "Let us look together," said {G}. "Things are often smaller than our fear." {Ghe} gave {him} a
  flashlight.
- "A monster?" said {G}. "Then it may be cold and lonely. Let us go and say hello." {Ghe} took {H's}
  hand.
- {G} did not laugh. "Sometimes I was scared, too, when I was little," {ghe} said. "Here, hold the
  lamp. We will look together."
beat
- {H} took a deep breath and counted to three. Then {he} knelt down and shone the light under the
  bed. Two green eyes looked back.
- Step by step they went closer. {H} bent down and looked. Something {small} and {soft} blinked at
  {him}.
- {H} felt {his} heart beat, but {he} lifted the blanket anyway. And what was there?
paragraph
- It was a {small} {$pet}! It had come in through the window to get out of the cold.
- It was not a monster at all. It was {N's} {$pet}, and it had lost its way.
- There sat a {$pet}, and it was even more afraid than {H}.
beat
- "Hello, little monster," {H} laughed. The {$pet} came out and licked {his} hand.
- "Don't be scared," {H} {whispered} to the {$pet}. "I was scared, too."
- {H} stroked it {softly}, until it stopped shaking.
maybe
- They gave the {$pet} a bowl of warm milk, and the next morning they took it home.
- "Can it stay for tonight?" {H} asked. {G} smiled and nodded.
- {G} put a basket next to the bed, and the {$pet} curled up in it.
paragraph
- {@moral_brave}
- After that night, {H} was not so afraid of the dark. Who knows? There might be a {$pet} in it.
- From then on, when {H} heard a noise at night, {he} just took a light and had a look.
plot loose_tooth child
elder parent
let food = treat
beat
- {@meet_hero} {He} had a loose tooth. It wiggled to the left, and it wiggled to the right.
- {@meet_hero} One morning, {his} tooth began to wiggle.
- {@meet_hero} {His} friend {F} had already lost {age} teeth, and now {H} had a loose tooth, too!
beat
- "It will fall out soon," said {G}. But {H} was {worried}.
- "Will it hurt?" {he} {asked}. "Not much," said {G}. "Wait and see."
- But {H} was {afraid}. "What if it never grows back?" {he} asked.
paragraph
- {He} would not eat a {fruit}. {He} would not even eat a {$food}.
- All day {he} held {his} mouth shut and only nodded or shook {his} head.
- At breakfast, {he} ate only soft things. At lunch, {he} ate nothing at all.
paragraph
- {F} came to visit and showed {fhis} new tooth. "Look," said {F}, "it is even bigger than the old
  one. It did not hurt. It only tickled."
- "Mine fell out at school," said {F}. "I was scared, too. Then it was over before I could count to
  three."
- "I kept mine in a little {container}," said {F}. "When it came out, I was so surprised that I
  forgot to cry."
beat
- {H} felt a bit better. {He} gave the tooth a {small} push with {his} tongue.
- That helped. {H} took a bite of a {$food}, just a tiny one.
- {H} began to smile. And when {F} told a joke, {he} had to laugh out loud.
paragraph
- Pop! Something {small} and white fell into {his} hand.
- And there it was! The tooth had come out all by itself.
- "My tooth!" {he} {cried}. It lay in {his} hand, as white as a pearl.
beat
- It had not hurt at all. {@glad_face}
- {He} ran to the mirror and looked at the funny little gap. {@glad_face}
- "I did not even feel it!" {H} {cried}. {G} and {F} clapped.
paragraph
- That night, {he} put the tooth under {his} pillow. In the morning, there was a {shiny} coin.
- In bed, {he} put the tooth under {his} pillow. When {he} woke up, the tooth was gone, and there
  lay a {small_find}.
beat
- Now {he} could whistle through the gap, and {he} did it all day long.
- "I cannot wait for the next one," {he} {said}.
- And soon a new tooth began to grow, just as {F} had said.
plot secret_gift any
let gift = craft
beat
- {@meet_both}
- {@meet_hero} {@meet_friend}
- {@meet_hero} {@likes} {@meet_friend}
maybe
- {@aside}
paragraph
- {F's} birthday was near, and {H} wanted to make a {$gift} out of {$gift.stuff}. "It must be a
  secret," {he} thought.
- {H} had a secret. {He} was making a {$gift} for {F} out of {$gift.stuff}, and nobody was allowed
  to know.
- {When}, {H} had a {idea_word}. {He} would make a {$gift} for {F}, all by {himself}.
beat
- Every afternoon {he} worked on it behind a closed door. "I have no time to play," {he} told {F}.
- "Can we play today?" asked {F}. "Not today," said {H} and {hurry.ed} home. The next day {he} said
  it again.
- For {days}, {he} cut and glued and tied. When {F} knocked, {he} hid everything {hiding_spot} and
  did not open the door.
paragraph
- {F} grew {sad}. "Maybe {H} does not like me anymore," {fhe} thought.
- {F} did not understand it. {Fhe} sat alone {place.at} and looked at the ground.
- "What did I do wrong?" {F} wondered. {Fhe} played alone, but it was no fun.
beat
- {H} saw it from the window, and {his} heart hurt. But the {$gift} was not ready.
- When {H} noticed how sad {F} was, {he} worked even faster.
- One day {H} saw a tear on {F's} cheek. "I must finish it today," {he} thought.
paragraph
- At last the day came. {H} ran to {F} and held out the {$gift}. "This is for you," {he} said. "That
  is why I had no time."
- On the birthday, {H} knocked at {F's} door. {He} was hiding something behind {his} back. "I made
  it for you," {he} {said}.
- In the evening it was done. {H} brought it over with a {color} bow around it. "Happy birthday,
  {F}!" {he} {cried}.
beat
- {F} looked at the {pretty} {$gift}, and then {fhe} began to laugh. "I thought that you were angry
  with me!"
- {F's} mouth fell open. "You made this? For me?" {fhe} {whispered}.
- {F} turned the {$gift} around and around. "It is the best present in the world," {fhe} said.
paragraph
- "I am sorry that I made you sad," said {H}. "Next time I will keep the present a secret, but not
  my friendship."
- "I should have told you that I was busy with something good," said {H}. "I did not want to hurt
  you."
- "I could never be angry with you," said {H}. "But secrets are hard work!"
beat
- {@friends_hug} {@play_together}
- {@friends_hug} And the {$gift} got the best place in {F's} home.
- {@friends_hug} {@eat_together}
)";

}  // namespace flashstep
