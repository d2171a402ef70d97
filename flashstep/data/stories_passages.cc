// Passages that many plots share: how stories open and close, and small scenes between.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kPassages = R"(
pool meet_hero.child
- Once upon a time, there was a {trait} {kind} named {H}.
- Once there was a little {kind} named {H} who was very {trait}.
- {H} was a {trait} {kind}.
- There once was a {trait} {kind} whose name was {H}.
- {H} was a {small}, {trait} {kind} with a big smile.
- Once upon a time, a {trait} {kind} named {H} lived in {home}.
- In {house} {near} lived a {trait} {kind} named {H}.
- {H} was a {trait} {kind} who lived in {house} {near}.
- Once upon a time, in {house} {near}, there lived a {kind} named {H}.
- This is the story of a {trait} {kind} named {H}.
- {H} was {age} years old and very {trait}.
- A {trait} {kind} named {H} lived {near} with {his} family.
pool meet_hero.animal
- Once upon a time, there was a {trait} little {kind} named {H}.
- Once there was a young {kind} named {H} who was very {trait}.
- {H} was a {trait} {kind} who lived in {home}.
- There once was a {small} {kind} whose name was {H}.
- {H} was a {small}, {trait} {kind} with bright eyes.
- Once upon a time, a {trait} {kind} named {H} lived in {home}.
- In {home} {near} lived a {trait} {kind} named {H}.
- Once upon a time, in {home}, there lived a little {kind} named {H}.
- This is the story of a {trait} little {kind} named {H}.
- A {trait} {kind} named {H} lived {near}.
- Far away, {near}, lived a {trait} {kind} named {H}.
pool likes
- {He} loved to {hobby}.
- {He} liked to {hobby} and {hobby}.
- Most of all, {he} loved to {hobby}.
- {He} liked to {hobby}, but more than anything {he} loved to {hobby}.
- Every day {he} found time to {hobby}.
- {His} favorite thing in the world was to {hobby}.
- {He} could {hobby} for hours.
- On most days, {he} was busy. {He} loved to {hobby} and to {hobby}.
- If you asked {him} what {he} liked best, {he} would say, "I like to {hobby}!"
- {He} was always {glad} when {he} could {hobby}.
pool aside.child
- When {H} grew up, {he} wanted to be a {job}.
- {H} wanted to become a {job} or a {job} one day.
- {H} collected {collectible.s} and kept them in a {container}.
- {H} had {number} {collectible.s} in a {container} under the bed.
- {His} favorite food was {supper}, and {his} favorite color was {color}.
- {H} had read every book about {book_topic}.
- {H} always wore a {color} {clothing}, even in bed.
- {H} could play the {instrument} a little, but only when nobody was listening.
- {H} knew a song about {song_topic} and hummed it all the time.
- At night, {H} often dreamed of {dream}.
- {H} had a {big|little} {sister|brother} who wanted to be a {job}.
- On {his} wall hung a picture of {dream}.
- {H} could name every {bird} and every {bug} in the garden.
pool aside.animal
- When {H} grew up, {he} wanted to be a {job}.
- {H} collected {natural.s} and kept them in a {container}.
- {H} had {number} {natural.s} at home, and each of them had a name.
- {His} favorite food was {soup}, and {his} favorite color was {color}.
- {H} knew a song about {song_topic} and hummed it all the time.
- At night, {H} often dreamed of {dream}.
- {H} could name every {bird} and every {bug} in the forest.
- {H} had a {big|little} {sister|brother} who wanted to be a {job}.
- {H} slept on a bed of {soft} moss under a blanket of {tree} leaves.
- {H} had never seen {dream}, but {he} liked to think about such things.
pool meet_friend.child
- {His} best friend was a {trait} {fkind} named {F}.
- {He} had a good friend named {F}, who was a very {trait} {fkind}.
- {F}, a {trait} {fkind} from next door, was {his} best friend.
- {He} did everything together with {his} friend {F}.
- {F} was {his} best friend, and the two were always together.
- {He} and {his} friend {F} played together every day.
- The {fkind} next door was called {F}, and the two of them were the best of friends.
pool meet_friend.animal
- {His} best friend was a {trait} {fkind} named {F}.
- {He} had a good friend, a {fkind} named {F}.
- A {fkind} named {F}, who was very {trait}, was {his} best friend.
- {He} did everything together with {his} friend {F}, the {fkind}.
- {F}, the {fkind}, was {his} best friend, and the two were always together.
- {He} played every day with {F}, the {fkind}.
pool meet_both.child
- {H} and {F} were best friends. {H} was {trait}, and {F} was {trait}.
- Once upon a time, there were two friends named {H} and {F}. They loved to {hobby} together.
- {H} and {F} lived on the same street. They liked to {hobby} and {hobby}.
- {H} had a best friend named {F}. Every day the two friends met to {game}.
- Once there were two {trait} friends, {H} and {F}, who did everything together.
- Two friends, {H} and {F}, lived {near}. They liked to {game}.
- {H} and {F} had been friends since they were very small. They loved to {game} and {game}.
pool meet_both.animal
- {H} the {kind} and {F} the {fkind} were best friends. {H} was {trait}, and {F} was {trait}.
- Once upon a time, there were two friends, a {kind} named {H} and a {fkind} named {F}.
- {H} the {kind} and {F} the {fkind} lived {near}. They liked to {hobby} and {hobby}.
- A little {kind} named {H} had a best friend, a {fkind} named {F}. Every day they met to {game}.
- Once there were two {trait} friends, {H} the {kind} and {F} the {fkind}, who did everything
  together.
- {H} was a {kind}, and {F} was a {fkind}. They were very different, but they were the best of
  friends.
- Two friends, {H} the {kind} and {F} the {fkind}, loved to {game}.
pool fine_weather
- {Weather}.
- {Weather}, and {he} felt {glad}.
- {Weather}, and it was a good day to be outside.
- {Weather}. It was a perfect day.
- {Weather}, and everything smelled fresh.
- What a {pretty} day it was!
- A {bird} was singing in a {tree}.
- {Flower.s} were blooming everywhere.
pool on_the_way.child
- On the way, {he} passed the {shop} and the {shop}.
- On the way, {he} saw a {bug}, a {bird}, and a {big_bird}.
- On the way, {he} counted the {tree.s} and waved to a {job}.
- {He} went past the {shop}, where somebody was playing the {instrument}.
- A {bird} flew along beside {him}, and a {bug} sat on {his} sleeve.
- A {vehicle} rolled by, and {he} waved.
pool on_the_way.animal
- On the way, {he} saw a {bug}, a {bird}, and a {big_bird}.
- On the way, {he} counted the {tree.s} and smelled the {flower.s}.
- A {bird} flew along beside {him}, and a {bug} sat on {his} tail.
- {He} went past the {tree.s} and through the {flower.s}.
- A young {wild} looked out of the bushes and said hello.
pool search.child
- {He} looked {hiding_spot}. {He} looked {hiding_spot}. It was not there.
- {He} searched everywhere, even {hiding_spot}, but found nothing.
- First {he} looked {hiding_spot}. Then {he} looked {hiding_spot}. There was only dust.
- {He} peeked {hiding_spot} and found an old sock. {He} peeked {hiding_spot} and found a
  {small_find}.
- {He} looked high and low. {He} looked {hiding_spot} and {hiding_spot}, but it was nowhere to be
  seen.
- {He} turned the whole {room} upside down. {He} even looked {hiding_spot}.
- {He} searched the {room}, and then the {room}, and then the {room} too.
pool search.animal
- {He} looked {hiding_spot}. {He} looked {hiding_spot}. It was not there.
- {He} searched everywhere, even {hiding_spot}, but found nothing.
- First {he} looked {hiding_spot}. Then {he} looked {hiding_spot}. There were only beetles.
- {He} peeked {hiding_spot} and found a {small_find}. {He} peeked {hiding_spot} and found a sleepy
  {bug}.
- {He} looked high and low. {He} looked {hiding_spot} and {hiding_spot}, but it was nowhere to be
  seen.
- {He} sniffed {hiding_spot}. {He} dug {hiding_spot}. Nothing!
pool hug
- {He} gave {G} a big hug.
- {He} hugged {G} tightly.
- {G} gave {him} a warm hug.
- {G} hugged {him} and kissed the top of {his} head.
- They hugged for a long time.
- {He} ran into {G's} arms.
pool friends_hug
- The two friends hugged.
- They gave each other a big hug.
- {F} hugged {H}, and {H} hugged {F} right back.
- They looked at each other and laughed.
- They danced in a circle.
- {H} and {F} smiled at each other.
- They clapped and jumped up and down.
pool sad_face
- {His} eyes filled with tears.
- A tear rolled down {his} cheek.
- {He} felt very {sad}.
- {His} heart felt heavy.
- {He} sat down and began to cry.
- {His} lip began to shake.
- {He} hung {his} head.
- {He} wanted to cry.
pool glad_face
- {He} smiled from ear to ear.
- {He} felt {glad} from head to toe.
- {His} heart jumped for joy.
- {He} could not stop smiling.
- {His} eyes shone.
- {He} clapped and laughed.
- {He} was {happy_as}.
- {He} felt warm inside.
- {He} did a little dance.
pool fear_face
- {His} heart beat fast.
- {His} knees shook {shook_like}.
- {He} was so {afraid} that {he} could hardly breathe.
- {He} wanted to run away.
- {He} felt cold all over.
- {He} held {his} breath.
- {His} tummy felt funny.
pool think_hard
- {H} sat down and thought hard.
- {H} thought and thought.
- {H} closed {his} eyes and thought about it.
- {H} scratched {his} head and thought.
- Then {H} had a {idea_word}.
- {H} stopped and thought for a moment.
pool play_together
- They {game.ed} until the sun went down.
- They {game.ed} and {game.ed} all afternoon.
- Then they {game.ed} together and laughed a lot.
- All afternoon they {game.ed}, and nobody was left out.
- They {game.ed}, and then they {game.ed} some more.
- After that they {game.ed} until it was time to go home.
pool eat_together
- They sat down together and ate {snack}.
- They shared {snack} and drank {drink}.
- Afterward there was {drink} and a plate of {snack} for everyone.
- They ate {snack}, and everything tasted {yummy}.
- They each had a cup of {drink} and some {snack}.
pool end_sleep
- That night, {H} {bedtime} and fell asleep with a smile.
- That night, {H} dreamed of {color} {flower.s} and {soft} clouds.
- That night, {H} dreamed of {dream}.
- That night, {H} dreamed of a {zoo_animal} who played the {instrument}.
- That night, {H} dreamed of a {color} {vehicle} that flew to the {sky}.
- When the stars came out, {H} {bedtime} and thought about the day. It had been a very good one.
- When {H} went to bed that night, {he} was {tired} and {glad}.
- {H} fell asleep that night as soon as {his} head touched the pillow.
- That night the moon shone through the window, and {H} slept well.
- And when {he} {bedtime} that night, {he} was still smiling.
pool end_friends
- From that day on, {H} and {F} were the best of friends.
- And from then on, {H} and {F} did everything together.
- {H} and {F} stayed friends for ever and ever.
- After that day, {H} and {F} were never far apart.
- From then on, where you saw {H}, you also saw {F}.
- They promised to be friends forever, and they kept that promise.
pool end_day
- It was a day that {H} would never forget.
- It had been a {pretty} day.
- What a day it had been!
- It had been a day as {pretty} as a dream.
- {H} wished that every day could be like this one.
- And {H} was {happy_as}.
- {H} thought that it was the best day of the whole year.
- Everyone was {glad}, and most of all {H}.
- That evening they had {supper} for supper, and {H} ate two big helpings.
pool end_sleep_g
- At bedtime, {G} kissed {H} good night. "Sweet dreams," {ghe} {whispered}.
- That evening, {H} told {G} the whole story twice.
- "Good night, my little hero," {G} {whispered} at bedtime. {H} was already asleep.
- {G} tucked {H} in. "What was the best part of your day?" asked {G}. "All of it," {H} said and
  yawned.
- At bedtime, {G} read a story about {book_topic}, but {H} fell asleep on the second page.
pool end_out
- {H} went home {happy_as}.
- On the way home, {H} sang a little song about {song_topic}.
- When {H} came home, {he} was {tired} and {glad}.
- {H} skipped all the way home.
- The sun was going down when {H} came home, {happy_as}.
- At home, {H} could not stop talking about it.
pool moral_share
- {H} learned that things are more fun when you share them.
- {H} had learned something that day. A thing you share does not get smaller. It makes two people
  happy.
- {H} thought, "Sharing is much nicer than having it all."
- From that day on, {H} always shared with others.
- And {H} knew now that sharing makes everything sweeter.
- "When we share, we both win," {H} {said}.
pool moral_honest
- {H} learned that telling the truth can be hard, but it always makes your heart feel light.
- {H} knew now that the truth is always the best way.
- From that day on, {H} always told the truth, even when it was hard.
- {H} felt much lighter. A true word is better than a hidden worry.
- And {H} never forgot that being honest is a kind of being brave.
pool moral_brave
- {H} learned that being brave does not mean that you are never afraid. It means that you try
  anyway.
- {H} was still a little afraid sometimes. But now {he} knew that {he} could be brave, too.
- From that day on, everyone called {him} brave {H}.
- "I was scared, but I did it," {H} thought, and {he} felt very {proud}.
- And {H} knew that even someone small can be {brave_as}.
- {H} had found out that courage grows when you use it.
pool moral_try
- {H} learned that hard things become easy when you do not give up.
- "If you keep trying, you get a little better each day," {H} {said}.
- {H} knew now that every mistake is a small step forward.
- From then on, when something was hard, {H} said, "I cannot do it yet. But soon I will."
- {H} had learned that practice and patience can do almost anything.
- {H} was {proud}, because {he} had not given up.
pool moral_help
- {H} learned that even a small helper can do a big thing.
- {H} felt good, because helping others makes your own heart warm.
- And {H} learned that when you help someone, you often make a friend.
- "It feels good to help," {H} thought.
- From that day on, {H} always looked for someone who needed help.
- A little kindness goes a long way, and {H} never forgot it.
pool moral_team
- {H} learned that together you can do things that nobody can do alone.
- Many hands make light work, and many friends make it fun.
- "Together we can do anything," {H} {said}.
- They had learned that working together is better than working alone.
- Alone it had been too hard, but together it was easy.
pool moral_kind
- {H} learned that a kind deed can change a whole day.
- And {H} knew that being kind is the best kind of magic.
- {H} thought, "Kindness comes back to you, like a ball that you throw into the air."
- From that day on, {H} tried to be kind to everyone.
- It does not cost anything to be kind, and it is worth more than gold.
pool moral_patience
- {H} learned that good things take time.
- {H} knew now that waiting is easier when you look forward to something.
- "Some things cannot be hurried," {H} {said} with a smile.
- Good things come to those who wait, and {H} had waited very well.
- From then on, {H} was a little more patient with everything.
)";

}  // namespace flashstep
