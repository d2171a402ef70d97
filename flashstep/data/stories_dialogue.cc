// What the characters say to each other in many plots. The name of a pool tells who speaks to whom:
// h the hero, f the friend, g the grown-up.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kDialogue = R"(
pool thanks_f_h
- "Thank you, {H}," {F} {said}. "You are a true friend."
- "Thank you so much!" {F} {cried}.
- "Oh, thank you, {H}! You are so kind," said {F}.
- "You helped me," said {F}. "I will never forget it. Thank you!"
- "Thank you," {F} {whispered} and smiled.
- "That was so nice of you," said {F}. "Thank you, {H}!"
pool thanks_h_f
- "Thank you, {F}," {H} {said}. "You are a true friend."
- "Thank you so much!" {H} {cried}.
- "Oh, thank you, {F}! You are so kind," said {H}.
- "I could not have done it without you," {H} said. "Thank you, {F}!"
- "Thank you," {H} {whispered} and smiled.
- "You are the best friend in the world," {H} told {F}.
pool thanks_h_g
- "Thank you, {G}!" {H} {cried}.
- "Thank you so much," {H} said and hugged {G}.
- "Oh, thank you, {G}! You always know what to do," said {H}.
- "Thank you for helping me," said {H}.
- "You are the best, {G}," {H} {said}.
pool welcome_h
- "You are welcome," {H} {replied}.
- "I am glad that I could help," said {H}.
- "That is what friends are for," said {H}.
- "It was nothing," {H} said with a smile.
- "Any time," said {H}.
pool welcome_f
- "You are welcome," {F} {replied}.
- "I am glad that I could help," said {F}.
- "That is what friends are for," said {F}.
- "It was nothing," {F} said with a smile.
- "You would do the same for me," {F} {replied}.
pool whats_wrong_g
- "What is wrong, {H}?" {G} {asked}.
- "Why are you so sad, {H}?" asked {G}.
- {G} saw {his} face and sat down next to {him}. "What happened?" {ghe} asked.
- "You look worried," said {G}. "Tell me all about it."
- {G} came in and saw that something was wrong. "Do you want to talk about it?" asked {G}.
pool whats_wrong_f
- "What is wrong, {H}?" {F} {asked}.
- "Why are you so sad?" asked {F}.
- "You look unhappy," said {F}. "What happened?"
- {F} sat down next to {H}. "Tell me what is wrong," said {F}.
pool comfort_g
- "Do not worry," said {G} {softly}. "We will find a way."
- "Do not cry," said {G}. "Every problem is smaller when two carry it."
- {G} wiped away {his} tears. "It will be all right," {ghe} {whispered}.
- "I know how you feel," said {G} {softly}. "Let us think together."
- {G} hugged {him}. "You are not alone," said {G}. "I will help you."
pool comfort_f
- "Do not worry," said {F}. "I will help you."
- "Do not cry, {H}," said {F} {softly}. "We will do it together."
- {F} put an arm around {H}. "It will be all right," said {F}.
- "I know what to do," said {F}. "Come with me!"
- "Two can do more than one," said {F}. "Let me help!"
pool proud_g
- "I am so proud of you," said {G}.
- "You did very well, {H}," said {G}. "I am proud of you."
- {G} smiled. "What a {good|clever|brave|helpful|kind} {kind} you are," {ghe} {said}.
- "Well done!" {G} {cried}. "I knew that you could do it."
- {G} looked at {him} with shining eyes. "That was wonderful," {ghe} {said}.
pool sorry_h_f
- "I am sorry, {F}," said {H}. "I did not mean to hurt you."
- "I am so sorry," {H} {whispered}. "Can you forgive me?"
- {H} went to {F} and looked down. "I am sorry," {he} said. "I was wrong."
- "Please forgive me, {F}," {H} {said}. "I was not a good friend today."
- "I feel bad about what I did," said {H}. "I am very sorry."
pool forgive_f
- "I forgive you," said {F}. "Everyone makes mistakes."
- {F} thought about it and then smiled. "It is all right," said {F}. "Let us be friends again."
- "Thank you for saying that," said {F}. "I am not angry anymore."
- "I was a little sad," said {F}, "but now I feel better. Of course I forgive you."
- {F} held out a hand. "Friends?" {fhe} asked. "Friends!" said {H}.
pool invite_f
- "Do you want to play with me?" {F} {asked}.
- "Come and play!" {F} {cried}.
- "Would you like to join me?" asked {F}.
- "Let us {game}!" said {F}.
- "It is more fun with two," said {F}. "Will you play with me?"
pool yes_h
- "Yes, I would love to!" {H} {cried}.
- "Yes, please!" said {H}.
- {H} nodded. "I would like that very much," {he} {said}.
- "Of course!" said {H}. "Let us start right now."
pool encourage_g
- "{Rule_word}," said {G}. "You can do it."
- "Everybody makes mistakes at first," said {G}. "{Rule_word}."
- "When I was little, I could not do it either," said {G}. "{Rule_word}, and you will see."
- "It is hard, I know," said {G} {softly}. "But I believe in you."
- "Try once more," said {G}. "I am right here."
pool encourage_f
- "{Rule_word}!" said {F}. "You can do it."
- "Come on, {H}!" {F} {cried}. "You are almost there!"
- "I could not do it at first, either," said {F}. "{Rule_word}."
- "I believe in you," said {F}.
- "Try once more," said {F}. "I will stay with you."
pool can_i_help_h
- "Can I help you?" {H} {asked}.
- "Wait, let me help!" {H} {cried}.
- "Do you need some help?" asked {H}.
- "Do not worry, I will help you," said {H}.
pool bye_f
- "See you tomorrow!" {F} {cried} and waved.
- "Good night, {H}," said {F}. "See you tomorrow."
- "Let us meet again tomorrow," {F} {said}.
- "Goodbye, {H}!" {F} {cried}. "That was fun."
)";

}  // namespace flashstep
