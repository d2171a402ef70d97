// Plots about discoveries, wishes, journeys and small wonders.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kPlotsWonder = R"(
plot magic_pebble any
let stone = small_find
let wish = treat
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} often wished for things that {he} did not have.
- {@meet_hero} {@meet_friend}
maybe
- {@aside}
paragraph
- {When}, {he} found a {color} {$stone} {place.at}. It was warm, and it glowed {glow_as}. "I can
  grant three wishes," it said in a tiny voice.
- {When}, {he} helped an old frog out of a hole. "You are kind," said the frog. "Take this {$stone}.
  It will grant you three wishes."
- {When}, something fell out of the sky and landed in front of {his} feet. It was a {$stone} that
  shone {glow_as}. "Three wishes," it {whispered}, "and not one more."
beat
- {H} did not think for long. "I wish for a mountain of {$wish.s}!" {he} {cried}.
- "I want {$wish.s}," {he} {cried}, "as many as there are stars!"
paragraph
- Poof! There they were, {$wish.s} up to the roof. {H} ate and ate, until {his} tummy hurt. {He}
  never wanted to see another {$wish} again.
- At once it began to rain {$wish.s}. It was funny at first, but soon they covered everything, and
  {H} could not move.
beat
- "I wish that they were gone," {he} groaned. Poof! They were gone, and so was the second wish.
- "Stop!" {he} {cried}. "I wish that they would all go away." And away they went. Now there was only
  one wish left.
paragraph
- This time {H} wanted to think about it first. {He} thought of a {color} {toy}. {He} thought of a
  castle. Then {he} heard {noise}.
- "I must be careful with the last one," said {H}. {He} put the {$stone} into {his} pocket and
  {stroll.ed} down the path.
beat
- There sat {his} friend {F}, with a bandage around {fhis} leg. "I broke it," said {F}, "and I have
  to sit here for {days} and watch the others play."
- {He} came to {N's} house. It was cold and dark in there. "I am so lonely since my family moved
  away," {N} {sighed}. {H} told {his} friend {F} about it, but {F} did not know what to do.
paragraph
- {H} looked at the {$stone}. Then {he} knew what to do. "I wish," {he} said slowly, "that my friend
  may be happy and well."
- It was the easiest wish of all. "I wish that nobody here will be sad anymore," {H} {whispered}.
beat
- The {$stone} shone {glow_as} one last time, and then it was only a {$stone}. But {H} heard
  somebody laugh, and it was the best sound in the world.
- A warm wind blew. Poof! A moment later, everyone was laughing, and {H} laughed, too.
paragraph
- "You gave away your last wish," said {F}. // "No," said {H}. "I got what I wished for."
- {H} kept the {$stone}. There was no magic in it anymore, but it helped {him} to remember.
- {@moral_kind}
plot treasure_map any
elder grand
let prize = treat
let spot = tree
let cross = color
beat
- {@meet_both}
- {@meet_hero} {@meet_friend} They both wanted to be explorers.
maybe
- {@aside}
paragraph
- {When}, {H} found an old piece of paper {hiding_spot}. It was a map with a {$cross} cross!
- {When}, a paper boat came floating down the stream. There was something drawn on it. "It is a
  treasure map!" {H} {cried}.
beat
- "Look," said {F}. "Here is the big rock, and here is the bridge. The treasure must be there!"
- They turned the map around and around. "I know this place," said {F}. "That is the old bridge!"
paragraph
- They packed {snack} and a {tool} and {stroll.ed} off. First they had to go {number} steps to the
  north.
- They put on their boots and took a {tool}, just in case. "Follow me!" said {H}.
beat
- They {creep.ed} through a hollow log and crossed a stream on {number} stones. {F} slipped and got
  one wet foot.
- They crossed the old bridge and walked through tall grass. "I hope that there are no lions," {F}
  {whispered}.
- They came to a place where the path went two ways. {H} wanted to go left, and {F} wanted to go
  right. They looked at the map again and found that the {flower.s} showed the way.
maybe
- Above them flew a {big_bird}, and below them crept a {bug}. They drew both of them on the map.
- On the way, they met {N}. "Where are you two going?" {nhe} asked. "It is a secret," said {H}, and
  {N} winked.
- They stopped to eat. "Even explorers get hungry," said {F}.
paragraph
- At last they saw a tall {$spot}, and on its trunk was a {$cross} cross. "Here it is!" {H} {cried}.
- "There!" {F} {cried}. Someone had tied a {color} ribbon around a {$spot}.
beat
- They dug and dug, until they hit something hard. It was a {box|chest|tin|jar}!
- Between the roots stood an old {chest|box|trunk|suitcase}. It was locked, but the key was under a
  stone.
paragraph
- {H} opened it with shaking hands. In it were {number} {$prize.s}, two {small_find.s}, and a
  letter. "Well done, brave explorers," it said. "With love from {G}."
- Inside, they found {$prize.s}, a {small_find} for each of them, and a note. "For the two best
  explorers in the world. {G}."
beat
- "It was {G}!" {F} laughed. They filled their pockets and ran back to say thank you.
- Something rustled behind them. {G} came out from behind a bush and laughed. "You were faster than
  I thought," {ghe} {said}.
paragraph
- "The treasure is {yummy}," said {H} with {his} mouth full. // "But looking for it was even
  better," said {F}.
- That evening, they began to draw a map of their own. Can you guess for whom it was?
- {@end_friends}
plot echo any
elder parent
beat
- {@meet_hero} {When}, {he} was in a bad mood. Everything went wrong, and {he} did not want to be
  nice to anyone.
- {@meet_hero} {When}, {he} woke up feeling grumpy. Nobody knew why, not even {he} {himself}.
paragraph
- {He} stamped up the hill all alone. "Go away!" {he} shouted at a {bird}. And from across the
  valley a voice shouted back, "Go away!"
- {He} walked and walked, until {he} came to a deep valley. "Leave me alone!" {he} shouted. "Leave
  me alone!" a voice called back.
beat
- {H} was {surprised}. "Who are you?" {he} shouted. "Who are you?" the voice shouted back.
- {H} looked around, but {he} could see nobody. "Come out!" {he} shouted. "Come out!" shouted the
  voice.
paragraph
- Now {he} grew really angry. "I do not like you!" {he} shouted with all {his} might. "I do not like
  you!" the voice answered, and it sounded just as angry.
- "You are mean!" {H} shouted. "You are mean!" answered the voice.
beat
- {@sad_face} {He} ran home, {fast_as}.
- {H} felt tears in {his} eyes. {He} turned around and ran home.
paragraph
- "There is someone on the other side who is mean to me," {he} told {G}.
- "What happened?" asked {G}. // "Somebody lives over there," said {H}, "and he does not like me."
beat
- {G} smiled. "Go back," {ghe} said, "and this time say something kind. Then wait and see."
- {G} thought for a moment. "Maybe he is only waiting for a friendly word," {ghe} said. "Try it."
paragraph
- So {H} went back. "Hello," {he} called, not very loudly. "Hello," the voice called back.
- {H} did not believe it, but {he} went back up the hill. "Good day!" {he} called. "Good day!" came
  the answer.
beat
- "I am sorry!" called {H}. "I am sorry," said the voice softly. "Do you want to be my friend?"
  called {H}. "Be my friend," answered the voice.
- {H} began to smile. "You are nice!" {he} called. "You are nice!" the voice called back, and it
  sounded as if it was smiling, too.
paragraph
- {H} laughed, and the whole valley laughed with {him}. {@glad_face}
- Then {he} understood. The voice was {his} own! {He} laughed, and a hundred little laughs came
  back.
beat
- "What you call into the valley comes back to you," said {G} that evening. "It is the same with
  people."
- {@moral_kind}
plot boat_race any
let stuff = boat_stuff
beat
- {@meet_both}
- {@meet_hero} {@meet_friend}
maybe
- {@aside}
paragraph
- {When}, after a long rain, the stream was high. "Let us have a boat race!" said {F}.
- {When}, they sat by the stream and watched the leaves float by. "They look like little boats,"
  said {H}. "Let us build real ones!"
beat
- {H} made a boat out of {$stuff}, with a {color} leaf for a sail. {F} made one out of a walnut
  shell.
- {H} worked quickly and made a {big} boat. {F} took {fhis} time and made a {small} one out of
  {$stuff}.
- {F} put a {bug} on {fhis} boat for a captain, and {H} put a {flower} on {his}.
paragraph
- "Ready, set, go!" they {cried}. The boats danced away on the water, and the two friends ran along
  beside them.
- They put the boats into the water at the same time. The stream took them, and off they went.
beat
- {H's} boat was ahead at first. Then it spun around and got caught in the reeds.
- At the first bend, {F's} boat was in front. At the second bend, it was {H's}. Then a wave came,
  and {H's} boat turned over.
- The boats bumped into stones and slid down a tiny waterfall. When the water was calm again, {H's}
  boat was full of water, and it sank.
paragraph
- {H} stood still and watched {F's} boat sail on. "You win," {he} said, and it was not easy to say
  it.
- "That is not fair!" {H} wanted to shout. But then {he} saw how happy {F} was. "Good race," {he}
  said. "You win."
beat
- {F} saw {H's} face. {Fhe} ran ahead and fished {fhis} own boat out of the water. "Let us build one
  together," {fhe} said, "a big one, for both of us."
- "It was only luck," said {F}. "Come on! If we put our two ideas together, we can build a boat that
  never sinks."
paragraph
- So they took {$stuff}, two masts, and {number} leaves. It was the finest ship that the stream had
  ever seen.
- They built it with care. It had a cabin, a flag, and a seat for a {bug}.
beat
- It sailed around the bend and down to the river. "Where will it go?" asked {F}. // "To the sea,"
  said {H}, "and then around the world."
- They waved until it was only a dot. "Someday a child far away will find it," said {H}, "and wonder
  who made it."
paragraph
- {@moral_team}
- {@end_day}
- {@end_friends}
plot lost_pet child
elder parent
let pet = loose_pet
let spot = outdoor_spot
beat
- {@meet_hero} {He} had a {$pet} named {X}, and the two of them were always together.
- {@meet_hero} {His} {$pet} was called {X}. {X} was {small}, {fur}, and full of mischief.
- {@meet_hero} Every morning, {his} {$pet} {X} woke {him} with a wet nose.
paragraph
- {When}, somebody left the gate open. When {H} came home, {X} was gone.
- {When}, a loud bang scared {X}, and {xhe} ran away through a hole in the fence.
- {When}, {H} called {X} for breakfast, but {xhe} did not come. The bowl was still full.
beat
- "{X}! Where are you?" {H} {cried}. {He} looked {outdoor_spot}. {He} looked {outdoor_spot}. Nothing
  moved.
- {He} called and called. {He} looked {outdoor_spot} and {outdoor_spot}, but {X} was not there.
paragraph
- {@sad_face} "What if {xhe} is hungry?" {he} {sighed}.
- {@whats_wrong_g} // "{X} is gone!" said {H}. "We must find {xhim}!"
beat
- "Let us make posters," said {G}. They drew a picture of {X} and hung it on every {tree} on the
  street.
- {G} knocked on all the doors, and soon the whole street was looking for {X}.
- {His} friend {F} came to help. "We will ask everybody," said {F}, and they went from house to
  house.
maybe
- They asked everyone they met, but nobody had seen a {$pet}.
- They asked {N}. "I heard something in the night," said {N}, "but I thought it was the wind."
- It grew dark, and it began to rain, but {H} did not want to give up.
paragraph
- Then {H} had an idea. {He} took the bowl, filled it with {X's} favorite food, and shook it as
  loudly as {he} could.
- {H} stood still and closed {his} eyes. {He} whistled the little tune that {X} loved so much.
beat
- And from far away came {noise}! {H} ran and looked {$spot}. There sat {X}, wet and dirty and very
  happy to see {him}.
- There was {noise}. {H} knelt down and looked {$spot}. Two eyes shone in the dark, and a wet nose
  touched {his} hand. It was {X}!
paragraph
- "{X}! I missed you so much!" {H} {cried}. {X} licked {his} face from top to bottom.
- {H} held {X} tight and did not want to let {xhim} go. {@glad_face}
beat
- At home, {X} got a warm bath and a big supper. That night, {xhe} slept at the foot of {H's} bed.
- {G} mended the fence that same day. And {H} always looked twice at the gate.
- Everyone on the street was {glad}, and there was {drink} and {snack} for all the helpers.
plot egg_hatch any
elder grand
let baby = chick
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} often visited {G}, who kept hens and ducks and geese.
maybe
- {@aside}
paragraph
- {When}, {H} found an egg in the grass. It was still warm. "Where is your mother?" {he} {asked}.
- {When}, {G} showed {him} an egg. "The nest is empty," said {G}. "Nobody is keeping it warm."
beat
- {G} put it in a basket with {soft} hay. "We have to keep it warm and turn it every day," {ghe}
  said. "Do you want to do it?"
- "If we take good care of it, something may hatch," said {G}. "But it will take a long time."
paragraph
- {H} put a lamp next to the basket. Every morning and every evening, {he} turned the egg
  {carefully}.
- {H} made a nest out of {color} wool. {He} turned the egg three times a day and sang to it.
beat
- {Days} went by. "Is it asleep?" asked {H}. // "It is growing," said {G}. "{Rule_word}."
- {H} wanted to shake it to hear if someone was in there. But {he} knew that this would hurt it.
- {F} came to see it. "It is only an egg," said {F}. // "Not for long," said {H}.
paragraph
- Then, early one morning, {H} heard a soft tapping. There was a tiny crack in the egg!
- Then, one night, when everyone was asleep, {H} heard a tapping sound. The egg was moving!
beat
- "{G}, come quickly!" {he} {cried}. They sat down and watched, {quiet_as}.
- {H} held {his} breath. The crack grew longer and longer. {He} wanted to help, but {G} shook {ghis}
  head. "It must do this by itself," {ghe} {whispered}.
paragraph
- The shell broke in two, and out came a {$baby}. It was wet and tired, and it looked right at {H}.
- Crack, crack! A tiny beak came out, and then a head. It was a {$baby}!
beat
- "Hello," {H} {whispered}. "Peep," it said.
- Soon its feathers were dry, and it was as round and {soft} as a ball of wool.
paragraph
- From then on, it followed {H} everywhere, to the gate, to the pond, and even into the kitchen. It
  thought that {H} was its mother!
- {H} named it {X}. Wherever {he} went, the {$baby} ran behind {him}.
beat
- {@moral_patience}
- "You waited so well," said {G}. {@glad_face}
plot winter_birds any
let bird = bird
elder kin
beat
- {@meet_hero} {He} liked to look out of the window in the morning.
- {@meet_hero} {@likes}
maybe
- {@aside}
paragraph
- {Snowy_when}, the snow lay deep on the ground. A {$bird} sat on a bare branch, all puffed up like
  a ball.
- {Snowy_when}, it was so cold that the windows were covered with ice. {H} saw {number} little birds
  hopping in the snow. One of them was a {$bird}.
beat
- It pecked at the snow here and there, but it found nothing to eat. "It must be hungry," said {H}.
- "What do birds eat in the winter?" {H} {asked}. // "It is hard for them," said {G}. "The seeds are
  under the snow."
paragraph
- {H} brought some bread to the window, but the {$bird} flew away. {@sad_face}
- {H} ran outside with a handful of crumbs. But {he} was so loud that all the birds flew away.
beat
- "You have to be still," said {G}. "And seeds are better than bread. Let us build a little house
  for them."
- "I know what they need," said {G}, who was good with a hammer. "They need a place of their own."
paragraph
- They sawed and hammered and painted, until there was a {small} house with a {color} roof. They
  filled it with seeds and hung it on the {tree}.
- They made a tiny house out of {wood|bark|an old box}. {H} painted a {shape} on the roof, and {G}
  filled it with seeds and nuts.
beat
- Then {H} sat at the window and waited. No bird came. {He} waited until dark.
- The first day, nobody came. The second day, nobody came, either. "They do not like it," {H}
  {sighed}. "Wait," said {G}.
paragraph
- On the third day, the {$bird} came. It hopped onto the roof, looked left and right, and took one
  seed.
- Then, very early in the morning, something moved. The {$bird} sat in the little house and ate!
beat
- The next day, it brought its friends, a {bird}, a {bird}, and a {bird}. {H} counted them all.
- It must have told the others, because soon the little house was full of birds. {@glad_face}
paragraph
- All winter long, {H} filled the house with seeds. And when spring came, the {$bird} sat in front
  of {his} window and sang. It was the most beautiful thank-you in the world.
- {@moral_help}
- {@moral_kind}
plot clean_river any
let catch = container
beat
- {@meet_both}
- {@meet_hero} {@meet_friend}
maybe
- {@aside}
paragraph
- {Sunny_when}, they went to the river to swim. But the water was dirty. There were {cans and
  bags|bottles and boxes|old cans} everywhere.
- {Sunny_when}, they sat by the river. "It smells bad here," said {F}. An old shoe floated by, and
  then a bottle.
beat
- A little fish looked up at them, and it did not look happy at all.
- A {big_bird} stood at the edge. A piece of string was wrapped around its leg, and it could not
  fly.
paragraph
- "Somebody should do something," said {F}. // "Yes," said {H} slowly. "Somebody. Why not us?"
- {H} thought for a moment. "The river is sick," {he} said. "We have to help it."
beat
- They got a {$catch} and began to pick up the trash. After an hour it was full, but the river
  looked almost the same.
- They pulled out a tire, a broken chair, and {number} bottles. "We will never finish," {F}
  {sighed}.
paragraph
- Just then, {N} came by. "What are you doing?" {nhe} asked. "We are washing the river," said {H}.
  {N} laughed, rolled up {nhis} sleeves, and helped.
- {H} climbed on a rock and called out, as loudly as {he} could, "Who wants to help us?" First came
  one friend, then two, and then a whole crowd.
beat
- Some carried, some raked, and some sang. By evening, there were {number} big sacks of trash on the
  bank.
- Together they worked all day. The smallest ones picked up the smallest pieces, and the biggest
  ones carried the heavy things.
paragraph
- Then the river began to shine again. You could see every pebble on the ground, and the fish
  danced.
- When the sun went down, the water was as clear as glass. {N} untied the string from the leg of a
  {big_bird}, and it flew off into the evening sky.
beat
- They painted a sign and put it on the bank. "This river is our friend," it said. "Please keep it
  clean."
- They all jumped into the water at once. Splash! {@end_day}
paragraph
- {@moral_team}
- {@moral_help}
plot zoo_trip child
elder kin
let animal = gentle_animal
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} had a big book about animals, and {he} knew it by heart.
maybe
- {@aside}
paragraph
- {When}, {G} said, "Put on your shoes. Today we are going to the zoo!" {H} jumped up and down.
- {When}, {H} and {G} took the {train|bus|tram} to the zoo. {H} pressed {his} nose against the
  window all the way.
beat
- They saw a {zoo_animal}, two {zoo_animal.s}, and a baby {zoo_animal}. But {H} wanted to see the
  {$animal} most of all.
- "May we go to the {$animal} first?" asked {H}. "It is my favorite." On the way, they passed the
  {zoo_animal.s} and the {zoo_animal.s}.
- {H} laughed at the {zoo_animal}, which was making funny faces. But the best was still to come, and
  that was the {$animal}.
paragraph
- But the {$animal} sat in a corner with its back to the people. "It looks {sad}," said {H}.
- The {$animal} lay on the ground and did not move. It did not even look up. "What is wrong with
  it?" asked {H}.
beat
- "It is new here," said the zookeeper, {N}. "It misses its family, and it does not want to eat."
- {N}, the zookeeper, shook {nhis} head. "It came only yesterday," {nhe} said. "It is lonely, and it
  is afraid of all the noise."
paragraph
- {@think_hard} {He} sat down on the ground, {quiet_as}, and began to hum the song that {G} always
  sang for {him} at bedtime.
- {H} remembered how {he} had felt on {his} first day in a new place. So {he} sat down by the fence
  and told the {$animal} a story, very quietly.
beat
- After {minutes}, the {$animal} turned its head. It looked at {H} with its big dark eyes.
- At first nothing happened. Then one ear moved, and then the other. The {$animal} was listening.
paragraph
- Slowly, it came closer and sat down right in front of {him}. And then it took a {fruit} from its
  bowl and began to eat.
- It came to the fence, step by step, and ate its first bite. "I can hardly believe it!" {N}
  {whispered}.
beat
- "You have a special gift," said {N}. "Would you like to help me feed the {barn.s}, too?"
  {@glad_face}
- "Thank you, {H}," said {N}. "It needed a friend, and it found one." {N} gave {him} a cap of {his}
  own, just like a real zookeeper's.
paragraph
- From then on, {H} visited the {$animal} every {Saturday|Sunday|week}. It always came right to the
  fence when it heard {his} song.
- On the way home, {H} said, "When I grow up, I want to be a zookeeper." // "I think you already are
  one," said {G}.
- {@moral_kind}
plot picture_contest child
elder teacher
let subject = zoo_animal
beat
- {@meet_hero} {He} loved to paint more than anything else.
- {@meet_hero} {His} hands were always full of paint, because {he} loved to paint so much.
paragraph
- {When}, {G}, the teacher, said, "On Friday we will hang up our pictures. You may paint whatever
  you like."
- {When}, {his} teacher, {G}, brought big sheets of paper. "Paint your favorite animal," said {G}.
  "Then we will hang the pictures in the hall."
beat
- {H} painted a {$subject}. {He} used {color}, {color}, and a little bit of gold. It took {him}
  {days}.
- {H} began to paint a {$subject} at once. {He} worked at it every day, until it almost looked
  alive.
paragraph
- Next to {him} sat {F}, who was looking for a brush. {F} reached across the table, and the water
  fell over! It ran right across {H's} picture.
- On Thursday, {F} came running with a jar of paint. {Fhe} tripped, and the paint flew through the
  air. Splash! It landed on {H's} picture.
beat
- The {$subject} was gone. There was only a big {color} puddle. {@sad_face}
- Everybody was silent. In the middle of the {$subject} there was now a huge {color} spot.
  {@sad_face}
paragraph
- "I am so sorry," {F} {whispered}. "It was an accident." {F} looked as if {F/he} wanted to cry,
  too.
- "I did not mean to do it," said {F}, and {fhis} chin shook. "You can have my picture, if you
  want."
beat
- {H} wanted to be angry. But {he} knew that {F} had not done it on purpose. {He} took a deep
  breath. "It is all right," {he} said.
- {H} counted to ten. Then {he} looked at {F}. "Accidents happen," {he} said quietly. "I know that
  you are sorry."
paragraph
- Then {he} looked at the spot again. It had a strange shape. "Look," {he} said. "It is almost like
  a {shape}. We can make something out of it!"
- "Wait," said {F} and turned the paper around. "From this side, it looks like a
  {cloud|whale|dragon}! What if we go on painting together?"
beat
- So they painted side by side. The spot became a lake, and in the lake swam a {sea_animal} with a
  {color} hat.
- They gave the spot eyes and wings and a long tail. It became a dragon that was friends with a
  {$subject}.
paragraph
- On Friday, everyone stood in front of that picture. "How did you ever think of it?" asked {G}. {H}
  and {F} looked at each other and laughed.
- {G} hung the picture in the very middle of the wall. "It is different from all the others," said
  {G}. "I like it very much."
beat
- {H} learned that a mistake can be the start of something new.
- {@moral_team}
- {@end_friends}
)";

}  // namespace flashstep
