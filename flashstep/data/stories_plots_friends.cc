// Plots about friends: sharing, quarrels, newcomers, games.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kPlotsFriends = R"(
plot share_toy child
let toy = toy
let other = toy
elder kin
beat
- {@meet_hero} {G} gave {him} a new {$toy}, and {he} took it everywhere.
- {@meet_hero} For {his} birthday {he} got a {shiny} new {$toy}.
- {@meet_hero} {He} had saved {his} money for {days} to buy a {color} {$toy}.
paragraph
- {When}, {he} took it to the park. {F}, a {fkind} from {his} street, came running. "What a {pretty}
  {$toy}! May I play with it, too?" {fhe} asked.
- {When}, {H} was playing with it outside when {F} came by. {F} was a {trait} {fkind} who lived
  across the street. "Can I have a turn?" {fhe} asked.
- {When}, {his} friend {F} came to visit. "Oh, a {$toy}!" said {F}. "May I try it?"
beat
- "No!" said {H}. "It is mine." {He} held it tight and turned away.
- {H} shook {his} head. "It is new," {he} said. "You might break it."
- "Maybe tomorrow," said {H}. But {he} said it every time.
paragraph
- {F} did not say anything. {Fhe} went to the other side and played alone with an old {$other}.
- {F} looked down and walked away {sadly}. {Fhe} sat on a bench all alone.
- "That is all right," said {F} {softly}, but {fhis} voice was sad. {Fhe} went away to play with
  {fhis} {$other}.
beat
- {H} played with the {$toy}, but after {minutes} it was not so much fun anymore. There was nobody
  to laugh with.
- Now {H} had the {$toy} all to {himself}. But something was missing. It is hard to play a game for
  two when you are only one.
- {H} looked at the {$toy}. It was as {pretty} as before. Why did it feel so boring?
maybe
- Across the grass, {he} heard {F} singing quietly.
- "You look lonely," said {G}. "A {$toy} cannot laugh at your jokes, you know."
- {He} thought about the day when {F} had shared a {treat} with {him}.
paragraph
- {H} got up and walked over to {F}. "I am sorry," {he} said. "Would you like to play with my
  {$toy}?"
- {H} took a deep breath. {He} went to {F} and held out the {$toy}. "You first," {he} said.
- "{F}!" {H} called. "I was not nice. Let us play with the {$toy} together."
beat
- {F} smiled. "Yes!" {fhe} said. "And you can play with my {$other}."
- "Really?" {F} {asked}. {Fhis} eyes lit up. "Then you may try my {$other}, too."
- {F} took it very {carefully}. "I will give it back, I promise," {fhe} said.
paragraph
- Soon they had made up a game with the {$toy} and the {$other}, and it was the funniest game in the
  world.
- They took turns, and they laughed so much that their tummies hurt.
- They played until the street lamps came on. Neither of them wanted to stop.
beat
- {@moral_share}
plot share_food any
let fruit = fruit
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} was always hungry.
- {@meet_hero} {He} loved to eat, and most of all {he} loved {$fruit.s}.
maybe
- {@aside}
paragraph
- {When}, {he} found one last {$fruit} in the grass. It was big and ripe and smelled {yummy}.
- {When}, {N} gave {him} a big {$fruit}. "It is the last one of the year," {nhe} said.
- {When}, {he} had a {$fruit} for lunch. It was the biggest {$fruit} that {he} had ever seen.
beat
- {He} sat down {place.at} and was just about to take a bite. Then {he} saw {F}, a little {fkind},
  who was looking at the ground.
- {He} opened {his} mouth wide. But then {he} heard a tummy rumble, and it was not {his} own. A
  {fkind} named {F} stood there.
- Just then, {F} came along. {F} was a {fkind} who lived nearby, and {fhe} looked {tired}.
paragraph
- "Are you hungry?" asked {H}. // "A little," {F} {whispered}. "I have not had any lunch today."
- "What is the matter?" asked {H}. // "I lost my lunch on the way," {F} {sighed}.
- "Is something wrong?" {H} {asked}. // "I walked such a long way," said {F}, "and there was nothing
  to eat."
beat
- {H} looked at the {$fruit}. It was not so very big. If {he} gave half of it away, only half would
  be left.
- {H} looked at the {$fruit}, and then {he} looked at {F}. {He} was very hungry, too.
- "It is mine," a small voice said inside {him}. But another voice said, "You know how it feels to
  be hungry."
paragraph
- Then {he} broke the {$fruit} in two and gave {F} the bigger half. "Here," {he} said. "Eat with
  me."
- "Come and sit with me," said {H} at last. {He} cut the {$fruit} in two, and they each took one
  half.
- {He} smiled and held out the {$fruit}. "You take the first bite," {he} said, "and I take the
  second."
beat
- They sat side by side and ate. "It tastes so much better with you," said {F}.
- They ate slowly and talked about {book_topic}. Strangely, half of a {$fruit} was quite enough.
- The juice ran down their chins, and they laughed.
paragraph
- {@thanks_f_h} // The next day, {F} came back with a whole basket of {berry.s}. "Now it is my turn
  to share," {fhe} {said}.
- When they were done, there was only a seed left. They planted it together. "One day it will be a
  tree," said {H}, "and everyone can have some."
- {@thanks_f_h} // They buried the seed in the ground. Years later, a tall tree stood there, and it
  was full of {$fruit.s}.
paragraph
- {@moral_share}
- {@moral_kind}
- {@end_friends}
plot new_neighbor child
let toy = toy
beat
- {@meet_hero} {@likes} But there were no other children on {his} street.
- {@meet_hero} {He} often played alone, and {he} wished for a friend.
- {@meet_hero} {His} best friend had moved away, and now {he} had nobody to play with.
paragraph
- {When}, a big truck stopped in front of the house next door. Men carried out a {furniture}, a
  {furniture}, and a {furniture}.
- {When}, {H} heard a loud noise outside. A family was moving in next door!
- {When}, {H} looked out of the window. A truck stood there, and it was full of boxes.
beat
- Then {he} saw a {fkind} of {his} age with a {color} {$toy}. The {fkind} looked around with big
  eyes.
- Behind a pile of boxes sat a {fkind} and held a {$toy} very tight.
- A {fkind} got out of the car last of all. {Fhe} held a {$toy} and did not smile.
paragraph
- {H} wanted to say hello, but {he} did not know how. What if the {fkind} did not want to be
  friends?
- "Shall I go over?" {H} thought. {His} tummy felt funny. It is not easy to speak to someone new.
- {H} went to the fence, but {he} was too shy to speak. {He} only looked through a hole.
beat
- {@think_hard} {He} got a plate of {snack} and went next door.
- {@think_hard} {He} drew a picture of the street with all the houses and a big smiling sun.
- {He} picked a {flower} in the garden, and then another, until {he} had a whole bunch.
paragraph
- "Hello," {he} said. "I am {H}, and I live next door. This is for you." // "I am {F}," the {fkind}
  {whispered}. "Thank you."
- "Hi," {he} {said}. "My name is {H}. Welcome to our street!" // The {fkind} looked up. "My name is
  {F}," {fhe} {said}.
beat
- "Do you know anybody here?" asked {H}. {F} shook {fhis} head. "Now you know me," said {H}.
- "Is it hard to move to a new house?" asked {H}. {F} nodded. "All my friends are far away," {fhe}
  said. "I know how that feels," said {H}.
- For a moment they were both quiet. Then {F} held out the {$toy}. "Do you want to see it?" {fhe}
  asked.
paragraph
- {H} showed {F} the best places of all, the {tree} that you could climb, the {shop} on the corner,
  and the hole in the fence.
- They sat down on the steps, and {F} showed {H} how the {$toy} worked. Soon they were laughing.
- Then they played with the boxes. They built a ship and sailed around the whole world before
  supper.
beat
- {@play_together}
- {@eat_together}
- When it was time to go in, they waved to each other from their windows.
paragraph
- {@end_friends}
- {H} thought, "One little hello can change everything."
plot shy_newcomer any
beat
- {@meet_hero} {He} was very shy. When {he} met someone new, no word came out of {his} mouth.
- {@meet_hero} But {he} was shy. {He} watched the others play and never joined in.
- {@meet_hero} {He} was {quiet_as} and often played alone.
paragraph
- {When}, the others were playing {place.at}. They {game.ed} and laughed. {H} stood behind a {tree}
  and watched.
- {When}, {H} sat {place.at} and watched the others. "I wish that I could play, too," {he} thought.
- {When}, {H} heard laughter {place.at}. {He} came closer and hid behind a bush.
beat
- "What if they say no?" {he} thought. {@fear_face}
- {He} took one step, and then {he} took two steps back.
- {He} opened {his} mouth, but no sound came out.
paragraph
- Then a {color} ball rolled right up to {his} feet. A {fkind} named {F} came after it.
- A {fkind} named {F} turned around and saw {him}. {H} wanted to run away, but {his} feet did not
  move.
- Just then, {F}, a {trait} {fkind}, stepped on {his} foot by accident. "Oh, I am sorry! I did not
  see you there," {fhe} said.
beat
- "Hello!" said {F}. "You are so good at being quiet. Do you want to play with us?"
- "Hi there," said {F} {softly}. "Have you been here all the time? We need one more."
- {F} did not ask many questions. {Fhe} just smiled and sat down next to {H}. After a while, {fhe}
  said, "Shall we play together?"
paragraph
- {H} looked at {his} toes. "I do not know how," {he} {whispered}. // "I will show you," said {F}.
  "It is easy."
- {H} nodded a tiny nod. // "{Hooray}!" said {F}. "Come, I will tell you the rules."
- "Yes, please," {H} {whispered}. It was only two words, but it was the hardest thing {he} had done
  all day.
beat
- They played hide-and-seek, and {H} found the best place of all. Nobody could find {him}, because
  {he} was {quiet_as}.
- They played a game with a ball. {H} was quick, and soon everyone called {his} name.
- They told stories. When it was {H's} turn, {he} told one about {book_topic}, and everybody
  listened with open mouths.
paragraph
- "You are amazing!" the others {cried}. {@glad_face}
- "Again! Again!" they all shouted. {@glad_face}
- "Where have you been all this time?" asked {F}. {H} laughed out loud for the first time that day.
beat
- "Will you come back tomorrow?" asked {F}. // "Yes," said {H}, and this time {his} voice was clear
  and loud.
- {@bye_f} // "Goodbye, {F}!" said {H}, and it was not hard at all.
paragraph
- {@end_friends}
- {@moral_brave}
- And when someone new came along, {H} was the first to say hello.
plot broke_friends_toy child
let toy = wheeled
elder kin
beat
- {@meet_both} {F} had a {color} {$toy} that was very special. It had been a present from {G}.
- {@meet_both} {F's} favorite toy was a {color} {$toy}.
paragraph
- {When}, {H} was at {F's} house. "You can play with my {$toy}," said {F}, "but please be careful
  with it."
- {When}, {F} let {H} borrow the {$toy}. "Take good care of it," said {F}.
beat
- {H} drove it up a hill of pillows and down again. It went faster and faster. Crack! It hit the
  wall, and a wheel came off.
- {H} played with it all afternoon. Then {he} tripped over a {toy}, and the {$toy} fell down. One
  wheel rolled away under the sofa.
- {H} wanted to see how fast it could go. {He} gave it a big push. Bang! It bumped into a
  {furniture} and lost a wheel.
paragraph
- {@fear_face} "{F/He} will never play with me again," {he} thought.
- {H} looked around. Nobody had seen it. {He} could put it back on the shelf and say nothing.
- {H} felt hot and then cold. {He} wanted to hide the {$toy} {hiding_spot}.
beat
- But then {he} thought of {F's} kind face. A friend should tell the truth.
- But hiding it would not make it whole again.
- "If it were my {$toy}, I would want to know," {he} thought.
paragraph
- {H} went to {F} and held out the {$toy} with both hands. "I broke it," {he} said. "I went too
  fast. I am very sorry."
- "{F}," {H} said in a small voice, "something bad happened. I broke your {$toy}. I am so sorry."
beat
- {F} looked at the {$toy}, and {fhis} lip began to shake. For a while, neither of them spoke.
- {F} was sad, and a tear ran down {fhis} cheek. {H} felt like crying, too.
paragraph
- "Can we fix it?" {F} asked at last. // "I do not know," said {H}, "but I will try until it is as
  good as new."
- "Thank you for telling me," {F} said at last. "Maybe we can mend it together."
beat
- They took it to {G}, who had a box full of tools. {G} showed them how to use the
  {hammer|wrench|screwdriver}, and {H} held the wheel very still.
- They asked {G} for help. With a little glue and a new screw, the wheel was soon back in its place.
- They worked for {minutes} with a {hammer|wrench|screwdriver} and some string, and {G} helped with
  the hard part.
paragraph
- The {$toy} rolled across the floor, and it was even faster than before. {@friends_hug}
- "It runs!" {F} {cried}. "It has a small scratch, but now it has a story, too." {@friends_hug}
- "Look!" said {F}. "It is as good as new." {@friends_hug}
beat
- {@moral_honest}
plot quarrel any
beat
- {@meet_both}
- {@meet_hero} {@meet_friend}
maybe
- {@aside}
paragraph
- {When}, they wanted to play. "Let us {game}," said {H}. "No, let us {game}," said {F}.
- {When}, they found a {small_find} {place.at}. "I saw it first!" said {H}. "No, I did!" said {F}.
- {When}, they were building a little house of sticks. "The door goes here," said {H}. "No, it goes
  there," said {F}.
beat
- "You always get your way!" {H} shouted. "No, you do!" {F} shouted back.
- {H} stamped {his} foot, and {F} crossed {fhis} arms. Neither of them wanted to give in.
- They grew louder and louder, until a {bird} flew away in fright.
paragraph
- "Then I will play alone!" said {H}. {He} walked off to the left, and {F} walked off to the right.
- "I do not want to be your friend anymore!" said {F}, and they both went home.
- They turned their backs to each other and did not say another word.
beat
- At home, {H} tried to play alone, but it was dull. {He} looked at the door again and again.
- All alone, {H} sat down and threw pebbles at a stone. It was much too quiet.
- {H} was still angry at first. But then the anger went away, and only the sadness stayed.
paragraph
- {H} remembered how {F} had brought soup when {he} was sick. {He} remembered all the good days. "A
  silly quarrel is not worth it," {he} thought.
- "What was it all about?" {H} wondered. {He} could hardly remember. But {he} remembered that {F}
  was {his} best friend.
- {@think_hard} "I was so busy being right that I forgot to be nice," {he} {whispered}.
beat
- {H} picked a {flower} and set out to find {F}. And whom did {he} meet in the middle of the path?
  It was {F}, with a {flower} in {fhis} hand!
- So {he} got up and {hurry.ed} off to find {F}. But {F} was already on the way to {him}. They met
  at the big {tree}.
- {He} opened the door to go and say sorry. There stood {F}, who was just about to knock.
paragraph
- "I am sorry," they both said at the same time. Then they began to laugh.
- {@sorry_h_f} // {@forgive_f}
- "I missed you," said {H}. // "I missed you more," said {F}. // "No, I did," said {H}. Then they
  had to laugh.
beat
- This time they took turns. First they did what {F} liked, and then they did what {H} liked.
- "Let us do it your way first," said {H}. "And then your way," said {F}.
- {@friends_hug} {@play_together}
paragraph
- {H} learned that friends can quarrel and still be friends.
- From that day on, when they did not agree, they tossed a coin and laughed about it.
- {@end_friends}
plot the_race animal
let prize = gift
beat
- {@meet_hero} {He} was the fastest runner in the whole forest, and {he} knew it.
- {@meet_hero} {He} could run {fast_as}. More than anything, {he} wanted to win the big race.
- {@meet_hero} {He} had practiced for the forest race for {days}.
paragraph
- {Sunny_when}, all the animals came together {place.at}. {N} held up a {color} flag. The prize was
  a {pretty} {$prize}.
- {Sunny_when}, it was time for the race. Everyone lined up, big and small. The winner would get a
  {$prize}.
beat
- Next to {H} stood {F}, a {fkind} who had never run a race before. "Good luck," {F} {said}.
- "I just want to reach the end," said {F}, a little {fkind} with short legs. {H} smiled and looked
  straight ahead.
paragraph
- "Ready, set, go!" {N} {cried}. {H} shot off {fast_as}. Soon {he} was far in front.
- The flag came down, and they were off. {H} ran past the {tree}, over the bridge, and around the
  pond. Nobody could keep up with {him}.
beat
- Then {he} heard a cry behind {him}. {F} had slipped on a wet stone and lay in the stream.
- But halfway through the race, somebody called for help. {F} had stepped into a hole and hurt
  {fhis} foot.
- Near the end, {he} looked back. {F} was caught in a thorn bush and could not get out.
paragraph
- {H} could see the finish line. {He} only had to keep running. {He} thought of the {$prize}. Then
  {he} thought of {F}.
- "Somebody else will help," thought {H}. {He} took three more steps. But there was nobody else.
- {H} stopped. If {he} turned around, {he} would lose. If {he} did not, {he} would feel bad for a
  long, long time.
beat
- So {he} turned around and ran back. "Hold on to me," {he} {said}. Gently, {he} helped {F} to get
  free.
- {He} ran back, {fast_as}, and pulled {F} out. "Can you walk?" {he} asked. {F} shook {fhis} head.
paragraph
- The others ran past them, one after the other. {H} put {F's} arm around {his} neck, and they went
  on together, step by step.
- One by one, the others passed by. "You are going to lose because of me," said {F}. // "Then we
  will lose together," said {H}.
beat
- They came in last, but everybody clapped and cheered as if they had won.
- When they crossed the line, hand in hand, the sun was already low. And then a great cheer went up.
paragraph
- {N} came up to them with the {$prize}. "The fastest runner got a medal," {nhe} said. "But this is
  for the biggest heart."
- The winner, a young hare, came over and held out the {$prize}. "You stopped to help," said the
  hare. "You are the real winner."
beat
- {@thanks_f_h}
- {@end_friends}
- {@moral_kind}
plot music_show child
let tune = instrument
elder teacher
beat
- {@meet_hero} {He} played the {$tune}, and {he} played it very well, as long as nobody was
  listening.
- {@meet_hero} {He} loved to play the {$tune} in {his} room, where only the walls could hear it.
- {@meet_hero} Every day after school, {he} practiced the {$tune}.
paragraph
- One day at school, {G} said, "Next week we will have a show. {H}, would you like to play the
  {$tune} for us?"
- {When}, {his} teacher, {G}, told the class about a show. "I hope that you will play the {$tune},
  {H}," said {G}.
beat
- {H} nodded, but {his} knees felt weak. So many people would be there!
- "Yes," said {H}. But on the way home {he} wished that {he} had said no.
paragraph
- The week went by much too fast. On the evening of the show, {H} stood behind the curtain and
  peeked out. {@fear_face}
- When the day came, the hall was full of people. {@fear_face} {H} wanted to hide {hiding_spot}.
beat
- "I cannot do it," {he} {whispered}. "I have forgotten every note."
- {He} looked at the {$tune}. Suddenly {he} did not know how it began.
paragraph
- {F} stood next to {him} in a {color} costume. "I am scared, too," said {F}. "Do you know what I
  do? I look for one friendly face and play just for that one."
- {His} friend {F} took {his} hand. "Play it for me," said {F}. "Pretend that all the others are
  cabbages."
- "Look at me when you play," said {F}. "I will sit in the first row. And if you make a mistake, I
  will smile, and you just go on."
beat
- {H} had to laugh a little. Then {G} called {his} name, and {he} stepped out into the light.
- {H} took a deep breath. The curtain went up, and it became very quiet.
paragraph
- The first note was a bit shaky. {He} looked for {F} and found {fhim}. {F} smiled. The next note
  was better, and soon the music flew through the hall like a {bird}.
- {He} looked only at {F} and began to play. {He} thought of the sun and the wind, and {his} fingers
  remembered everything.
- {He} played one wrong note, but {F} smiled, and {he} went on. The song grew and grew, until it
  filled the whole room.
beat
- When it was over, there was silence. Then everyone stood up and clapped.
- At the end, {he} took a bow. The people clapped so loudly that the lamps shook.
paragraph
- "You were wonderful!" said {F}. // "I played it for you and the cabbages," said {H}, and they both
  laughed.
- {@proud_g} // "Thank you," said {H}. "But I had help." And {he} waved to {F}.
beat
- {@moral_brave}
- {@moral_try}
plot first_school_day child
elder teacher
let sign = shape
beat
- {@meet_hero} Today was {his} first day of school.
- {@meet_hero} {He} was big now, and it was time to go to school.
- {@meet_hero} {He} had a new {color} backpack, because school was about to begin.
beat
- {He} was {excited} and {worried} at the same time.
- {He} could not eat {his} breakfast. There were butterflies in {his} tummy.
- {He} had put on {his} best {clothing}.
paragraph
- The school was big and loud. Everyone seemed to know the way, except for {H}.
- In front of the school, {he} held {his} mom's hand very tight. "I will pick you up at noon," she
  said. "You will have so much to tell me."
- So many children ran through the halls! {H} felt as small as a {bug}.
beat
- The teacher's name was {G}. {Ghe} had a kind face and a {color} {clothing}. "Good morning, {H},"
  {ghe} said. "Your place is at the table with the {$sign}."
- "Welcome!" said the teacher. "I am {G}. Look for the table with the {$sign}. That is your table."
paragraph
- At the table sat a {fkind} who looked down at the floor. "My name is {H}," said {H}. "Are you new,
  too?" // The {fkind} nodded. "I am {F}," {fhe} {whispered}. "I do not know anybody."
- Next to {him} sat a {fkind} named {F}. {Fhis} eyes were red. "Are you sad?" asked {H}. // "I miss
  my dog," {F} {whispered}.
beat
- "Then we can stay together," said {H}. And all at once {he} was not so {afraid} anymore.
- {H} gave {F} half of {his} {treat}. "It is better with two," {he} {said}. {F} smiled a little.
paragraph
- {G} taught them a song about {song_topic}. They counted to ten, and they painted {zoo_animal.s}.
- They drew pictures and learned the letters of their names. At recess, they {game.ed}.
- {G} read them a story about {book_topic}. Then they went outside, where {H} and {F} {game.ed}.
beat
- The morning was over so quickly! When the bell rang, {H} did not want to go home.
- When it was time to go, {F} waved. "See you tomorrow!" {fhe} {cried}.
paragraph
- "How was it?" asked {his} mom. // "I have a teacher, a table, and a friend," {H} {said}. "May I go
  again tomorrow?"
- On the way home, {H} talked and talked. "And do you know what the best thing is?" {he} asked.
  "Tomorrow I can go again!"
)";

}  // namespace flashstep
