// Plots about courage, learning and promises.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kPlotsBrave = R"(
plot storm_night any
elder parent
beat
- {@meet_hero} {He} was not afraid of {bug.s}, and {he} was not afraid of the dark. But {he} was
  very afraid of thunder.
- {@meet_hero} {He} was brave, except when there was a storm.
- {@meet_hero} {@likes} There was only one thing that {he} did not like at all, and that was
  thunder.
paragraph
- {Night_when}, the wind began to howl. Rain beat against the door, and a bright light flashed.
  {Storm_sound}!
- {Night_when}, dark clouds covered the moon. There was a flash, and then came the thunder.
  {Storm_sound}!
- {Night_when}, {H} woke up. {Storm_sound}! The whole sky seemed to shake.
beat
- {@fear_face} {He} crept deep under the blanket and put {his} hands over {his} ears.
- {H} jumped out of bed and ran to {G}, {fast_as}. "I am scared!" {he} {cried}.
- {@fear_face} "{G}!" {he} {cried}.
paragraph
- {G} held {him} close. "The storm is only loud," {ghe} said {softly}. "It cannot come in here."
- {G} sat down with {him} by the window. "Do you want to know a secret?" {ghe} asked. "You can find
  out how far away it is."
- "Come here, my little one," said {G}. "When I was small, I was afraid of thunder, too. Then my
  grandma taught me a trick."
beat
- "When you see the light, count until you hear the thunder. If you can count far, the storm is far
  away."
- "Count with me after each flash," said {G}. "The more you can count, the farther away the storm
  is."
paragraph
- There was a flash. "One, two, three," they counted. {Storm_sound}! {H} held {G's} hand. There came
  another flash. "One, two, three, four, five, six!" It was moving away.
- Flash! "One, two," {H} {whispered}. {Storm_sound}! Next time, {he} got to five, and then {he} got
  to nine. "It is leaving!" {he} {said}.
maybe
- {G} sang a song about {song_topic}, and {H} sang along. They sang louder than the storm.
- They thought of funny names for the thunder. {H} called it Mister Grumble, and then it did not
  sound so bad.
- "Maybe the clouds are moving their furniture," said {H}. {G} laughed.
paragraph
- Soon there was only the soft sound of the rain. {H} yawned.
- After {minutes}, the storm was gone, and {number} stars looked out from behind the clouds.
beat
- In the morning, the world was clean and {shiny}, and there was a rainbow. "Thank you, storm," said
  {H}.
- {H} fell asleep in {G's} arms, and the rain sang {him} a lullaby.
- And the next time it thundered, {H} began to count, and {he} was hardly afraid at all.
paragraph
- {@moral_brave}
plot kitten_tree child
let fur = fur
let tree = tree
beat
- {@meet_hero} {He} did not like high places. Even on a chair {he} felt dizzy.
- {@meet_hero} {He} liked to play on the ground and never climbed up on anything, because {he} was
  afraid to fall.
- {@meet_hero} {@meet_friend} {F} loved to climb, but {H} always stayed on the ground.
paragraph
- {When}, {he} heard {noise} from the top of a {$tree}. High up on a branch sat {X}, the {$fur}
  kitten of {N}.
- {When}, {N} stood in the garden and wrung {nhis} hands. "My kitten {X} climbed up the {$tree},"
  {nhe} said, "and now {xhe} cannot come down!"
beat
- {X} looked down with big eyes. {Xhe} cried and cried.
- The branch swung in the wind, and {X} held on with all {xhis} claws.
paragraph
- {N} was too old to climb. The firefighters were far away. {H} looked around, but there was nobody
  else.
- "Please, can somebody help {xhim}?" asked {N}. {H} looked up, and {his} tummy turned over.
beat
- {@fear_face} But {he} could not leave the kitten up there.
- {@fear_face} Then the kitten cried again, and {H} made up {his} mind.
- "I am {afraid}," {H} {whispered}, "but {X} is even more afraid than I am."
paragraph
- {He} put one foot on the lowest branch. "Do not look down," {he} told {himself}. "Just take one
  branch, and then the next."
- "One step at a time," said {H}. {He} put {his} arms around the {big} trunk and began to climb.
beat
- Slowly, {he} climbed higher. A branch cracked, and {he} stopped. {He} took three deep breaths and
  went on.
- Up and up {he} went. The wind blew through {his} hair, but {he} only looked at the kitten.
paragraph
- At last {he} reached {X}. "Come to me," {he} {whispered}. The kitten crept into {his} jacket and
  began to purr.
- Then {he} held out a hand, {quiet_as}. {X} sniffed at it and climbed onto {his} shoulder.
beat
- Climbing down was harder, but the purring made {him} strong. When {his} feet touched the grass,
  {his} knees were soft.
- Step by step they came down together, until {H} stood on the ground again.
paragraph
- "You did it!" {N} {cried}. "You are {brave_as}!" {Nhe} gave {H} a {treat} and hugged {X} tight.
- {N} had tears in {nhis} eyes. "Thank you, {H}," {nhe} said. "You were afraid, and you climbed up
  anyway."
beat
- From the {$tree}, {H} had seen the whole town. "It was {pretty} up there," {he} {said}.
- {X} jumped down and rubbed against {H's} legs.
paragraph
- {@moral_brave}
plot dark_place any
let dark = dark_place
let lost = throw_toy
beat
- {@meet_both}
- {@meet_hero} {@meet_friend}
maybe
- {@aside}
paragraph
- {When}, they were playing with {F's} {$lost}. It rolled away, faster and faster, straight into a
  dark {$dark}.
- {When}, they threw {F's} {$lost} back and forth. It flew too far and disappeared in a dark
  {$dark}.
beat
- "I will never get it back!" {F} {cried}. "I am afraid of the {$dark}."
- They stood in front of the {$dark} and looked in. It was as black as ink. {F} began to cry.
paragraph
- {H} was {afraid}, too. But {he} saw the tears on {F's} face. "I will go," {he} {said}.
- {H} swallowed hard. "Wait here," {he} said. "I will get it for you."
beat
- {He} went in, one step after the other. {@fear_face}
- Inside, it was cold, and every step made an echo. {@fear_face}
paragraph
- Suddenly {he} heard {noise}. Two little lights shone in the dark! {H} wanted to run. But then {he}
  said, "Hello? Who is there?"
- Something moved. {H} stood {quiet_as}. "I am not going to hurt you," {he} {whispered} into the
  dark.
beat
- A {wild} came out. It was only a baby, and it was lost. It had been more scared of {H} than {he}
  was of it.
- It was a tiny {wild} that had fallen asleep next to the {$lost}. It blinked and gave a little
  yawn.
- "Squeak," said a small voice. It belonged to a {wild} that could not find the way out.
paragraph
- {H} laughed with relief. {He} picked up the {$lost} and showed the little animal the way to the
  light.
- "Come with me," said {H}. {He} took the {$lost} under {his} arm, and together they walked toward
  the light.
beat
- Outside, {F} was waiting. "You are so brave!" {fhe} {cried}.
- {F} jumped for joy when {F/he} saw them. "I was so worried about you!" {fhe} {said}.
paragraph
- "I was scared the whole time," said {H}. // "That is why it was brave," said {F}.
- {@thanks_f_h} // {@welcome_h}
- They gave the little animal some {berry.s}, and it ran home, {fast_as}.
beat
- {@moral_brave}
plot learn_skill any
elder kin
let skill = skill
beat
- {@meet_hero} {He} wanted to learn how to {$skill}.
- {@meet_hero} More than anything, {he} wanted to {$skill}.
- {@meet_hero} All of {his} friends could {$skill}, but {H} could not do it yet.
paragraph
- {When}, {he} tried it for the first time. {He} was sure that it would be easy. But {$skill.fail}.
- {When}, {he} said, "Today I will learn it!" {He} gave it a try, but {$skill.fail}.
- {When}, {G} promised to teach {him}. {H} could hardly wait. But at the first try, {$skill.fail}.
beat
- {He} tried it again and again. It was no better. {@sad_face}
- "I can't do it!" {he} {cried}. {@sad_face}
- Somebody laughed, and {H} turned red. "I will never learn it," {he} {sighed}.
paragraph
- {@encourage_g} // {H} nodded and wiped {his} nose.
- {G} sat down beside {him}. "Do you know how often I tried before I could do it?" {ghe} asked.
  "More than a hundred times!"
- {@whats_wrong_g} // "I am not good at {$skill.ing}," said {H}. // "Not yet," said {G}. "That is a
  very important word. Not yet."
beat
- "And here is a trick," {ghe} said. "{$skill.tip}."
- Then {G} showed {him} slowly how to do it. "{$skill.tip}," {ghe} said.
paragraph
- So {H} practiced every day. On Monday it went badly. On Tuesday it went a little better. On
  Wednesday it went badly again.
- So {H} practiced in the morning and in the evening. After {days}, it was still not right, but {he}
  did not give up.
- {H} practiced and practiced. Sometimes {he} wanted to stop, but then {he} said to {himself},
  "{Rule_word}."
beat
- {His} friend {F} came to watch. {@encourage_f}
- Each time, {he} remembered what {G} had said. "{$skill.tip}," {he} {whispered}.
paragraph
- And then, one day, it happened. {H} {$skill.win}!
- Then came a day when everything felt different. {H} took a deep breath, and then {he}
  {$skill.win}.
- At the end of the week, everybody came to watch. {H} {$skill.win}, and they all clapped.
beat
- "I did it!" {he} {cried}. "Did you see that? I did it!" {@glad_face}
- {@glad_face} "Again!" {he} {cried} and did it once more.
paragraph
- {@proud_g}
- "How did you learn it?" asked {F}. // "I did it wrong a hundred times," {H} said, "and then I did
  it right."
- Soon {he} was so good at {$skill.ing} that {he} could teach {F}. "It is hard at first," {he} said,
  "but I will help you."
beat
- {@moral_try}
plot promise_water child
let plant = flower
let fun = game
beat
- {@meet_hero} {@likes}
- {@meet_hero} {He} had a good heart, but {he} often forgot things.
- {@meet_hero} {@meet_friend}
maybe
- {@aside}
paragraph
- {When}, {N} from next door said, "I am going away for a week. Will you water my {$plant.s}, {H}?"
  // "I promise," said {H}.
- {When}, {N} had to visit {nhis} sister. "Could you take care of my {$plant.s} while I am away?"
  {nhe} asked. // "You can count on me," said {H}. "I promise."
paragraph
- On the first day, {H} watered them all. On the second day, {he} did it, too. But on the third day,
  {his} friend {F} came by and wanted to {$fun}.
- For two days, {H} watered them every morning. Then came a hot day, and {his} friend {F} called
  over the fence, "Come out! Let us {$fun}!"
beat
- "I will water them later," {H} thought. But later {he} was {tired}, and {he} forgot.
- {H} ran off to play, and {he} did not think of the {$plant.s} until {he} lay in bed. "Tomorrow,"
  {he} murmured.
paragraph
- The next day was even hotter. In the evening, {H} looked over the fence. The {$plant.s} hung their
  heads, and their leaves were yellow.
- When {he} came back two days later, the earth was as dry as dust, and the {$plant.s} lay flat on
  the ground.
beat
- "{Ohno}!" {he} {cried}. "I promised!" {@sad_face}
- {His} face became hot. {He} had given {his} word, and {he} had not kept it.
paragraph
- {He} ran for the watering can. {He} gave each of the {$plant.s} a long drink and tied them to
  little sticks. {He} even put up an umbrella to give them shade.
- {He} did not waste any time. {He} carried water, {number} cans of it, and told the {$plant.s} that
  {he} was sorry.
beat
- The next morning {he} got up before the sun to water them again. And the morning after that, too.
- "Do you want to {$fun}?" asked {F}. // "Not now," said {H}. "First I have to keep my promise." So
  {F} helped {him}.
paragraph
- When {N} came home, most of the {$plant.s} stood straight again. {H} told {nhim} everything. "I
  forgot them for two days," {he} said. "I am sorry."
- At the end of the week, the {$plant.s} were blooming. "They look {pretty}," said {N}. {H} looked
  at {his} shoes. "I forgot them once," {he} said, "but then I took care of them every day."
beat
- "You made a mistake, and you made it good again," said {N}. "I would trust you any time." {Nhe}
  gave {him} a {$plant} in a pot.
- {N} smiled. "Thank you for being honest, and for working so hard," {nhe} said. "Here is a {$plant}
  of your very own."
paragraph
- {H} put it on {his} window and never forgot to water it.
- {H} learned that a promise is like a plant. You have to take care of it every day.
plot honest_coin any
let found = keepsake
let wish = toy
let color = color
beat
- {@meet_hero} {@likes}
- {@meet_hero} There was something that {he} wished for very much, a {$color} {$wish}.
paragraph
- {When}, {H} was {stroll.ing} along when something blinked on the ground. It was a {shiny}
  {$found}.
- {When}, {he} saw something {shiny} {place.at}. {He} bent down and picked it up. It was a {$found}!
beat
- "{Hooray}!" {he} thought. "It is so {pretty}. Now it is mine!" {He} put it into {his} pocket.
- {He} rubbed it until it shone {glow_as}. {He} had never owned anything so {pretty}.
paragraph
- On the way home, {he} met {N}. {N} was looking at the ground and seemed very {sad}.
- A little later, {N} came along. {Nhe} looked behind every stone and under every bush.
beat
- "What are you looking for?" asked {H}. // "I lost my {$found}," said {N}. "It belonged to my
  mother, and it is very dear to me."
- "Did you lose something?" {H} {asked}. // "Yes, my {$found}," {N} {sighed}. "I have had it since I
  was as little as you."
paragraph
- {H} felt the {$found} in {his} pocket. Suddenly it was very heavy. Nobody knew that {he} had it.
- {H} did not say anything at first. {He} wanted to keep the {$found} so much. But {N} looked so
  {sad}.
beat
- "If I keep it, I will think of {nhis} sad face every day," {he} thought.
- {@think_hard} How would {he} feel, if {he} had lost the thing that {he} loved most?
paragraph
- {He} took it out of {his} pocket. "Is this yours?" {he} asked. "I found it on the ground."
- "I have it," said {H} and held it out. "I am sorry. I should have told you at once."
beat
- {N's} eyes filled with happy tears. "You found it! Thank you, thank you!" {nhe} {cried}.
- {N} took the {$found} and held it to {nhis} heart. "You are an honest {kind}, {H}," {nhe} {said}.
paragraph
- {N} invited {H} to tea. There was {drink}, and there were {treat.s}, and {N} told {him} the story
  of the {$found}.
- The next day, {N} came with a parcel. "This is for you," {nhe} said. In it was a {$color} {$wish},
  just for {H}.
- They walked home together, and {N} told {him} about the old days. From then on, they were friends.
beat
- {@moral_honest}
plot pond_rescue animal
beat
- {@meet_hero} {He} was the smallest of all {his} friends. "You are too little," they always said.
- {@meet_hero} {He} was so small that nobody noticed {him}.
paragraph
- {Snowy_when}, the pond was frozen. {F}, a big {fkind}, slid across the ice. "Look at me!" {fhe}
  {cried}.
- {Snowy_when}, everyone was sliding on the frozen pond. {F}, a young {fkind}, slid out the
  farthest.
beat
- "Be careful," {N} called. "The ice is thin in the middle!" But {F} did not hear it.
- Nobody saw the thin ice in the middle of the pond.
paragraph
- Crack! A hole opened in the ice, and {F} fell into the cold water up to {fhis} chin. "Help!" {fhe}
  {cried}.
- Then there was a terrible crack. The ice broke, and {F} held on to the edge. "Help me!" {fhe}
  {cried}.
beat
- The big animals ran to the edge, but the ice creaked under their feet. They were too heavy!
- {N} took one step onto the ice, and it cracked. "I am too heavy," {nhe} said. "What can we do?"
paragraph
- "I am not heavy," said {H}. Everybody looked at {him}. {@fear_face}
- {H} came forward. "I am small," {he} said. "The ice will hold me."
beat
- {He} took a long vine between {his} teeth and crawled out on {his} belly. The ice groaned, but it
  did not break.
- They tied a rope around {him}, and {he} crept over the ice, inch by inch, {quiet_as}.
paragraph
- "Take this!" {he} {cried}, and {F} grabbed it. On the shore, all the others pulled with all their
  might.
- {F} took hold of it with both paws. "Now pull!" {H} {cried}, and everyone pulled.
beat
- Slowly, {F} came out of the water and slid to the shore. They wrapped {fhim} in {soft} blankets
  and made a fire.
- With a big splash, {F} was free. Soon {fhe} sat by a warm fire with a cup of {drink}.
paragraph
- {@thanks_f_h}
- "You saved me," said {F}. "You are the bravest of us all."
beat
- From that day on, nobody ever said that {H} was too little.
- {@moral_brave}
- {@moral_help}
plot tall_tale any
let wild = zoo_animal
beat
- {@meet_hero} {He} liked to tell stories, and {his} stories grew bigger every time.
- {@meet_hero} {He} wanted everybody to admire {him}. So {he} often said things that were not quite
  true.
paragraph
- {When}, {he} told {his} friend {F}, "Last night I saw a {$wild} {place.at}! I was not afraid. I
  chased it away." // "Really?" {F} {asked}.
- {When}, {he} said to {his} friend {F}, "I can jump over the river, if I want to." // "Show me!"
  said {F}. // "Not today," {H} said quickly. "My foot hurts."
beat
- {F} was {surprised} and told everyone. Soon they all wanted to hear more.
- The story went around, and by noon everyone was talking about it.
paragraph
- "Show us!" they all said. "Come with us and show us how you did it!"
- That evening, they all stood in front of {his} door. "We want to see it with our own eyes," they
  {said}.
beat
- {H} got hot and cold. {He} did not want to go, but {he} did not dare to tell the truth, either.
- {@fear_face} {He} tried to think of an even bigger story. But this time nothing came to {his}
  mind.
paragraph
- They went along in the dark. Suddenly there was {noise} in the bushes. {H} screamed and hid behind
  {F}. But it was only a {tiny_animal}.
- They all looked at {him} and waited. {H} opened {his} mouth and closed it again. It became very
  quiet.
beat
- "I made it all up," {H} {whispered} at last. "None of it was true. I wanted you to like me."
- "It was not true," said {H}, and {his} face was red. "I am sorry. I only wanted to be special."
paragraph
- Nobody laughed. "But we like you anyway," said {F}. "You do not have to be a hero."
- {F} put an arm around {him}. "You do not need to make things up to be our friend," {fhe} {said}.
beat
- "And you do tell very good stories," {F} added. "Just tell us next time that they are stories."
- "Your stories are fun," said {F}. "But I like them best when I know that they are made up."
paragraph
- From then on, {H} told stories every evening. They always began with "Once upon a time," and
  everyone knew what that meant.
- {@moral_honest}
)";

}  // namespace flashstep
