// Who the stories are about, what they are like and how they feel.
#include "flashstep/data/stories_words.h"

namespace flashstep {

const std::string_view kPeopleWords = R"(
class girl name
Ada, Alice, Amelia, Anna, Aria, Ava, Bella, Beth, Bonnie, Carla, Carmen, Chloe, Clara, Cora, Daisy,
Dana, Della, Dora, Edith, Elena, Ella, Elsie, Emily, Emma, Esther, Eva, Evelyn, Fatima, Fiona,
Flora, Frida, Gia, Grace, Greta, Gwen, Hana, Hannah, Harriet, Hazel, Heidi, Helen, Holly, Ida, Ines,
Ingrid, Irene, Iris, Isla, Ivy, Jane, Jenny, Joanna, Julia, June, Kate, Keiko, Kira, Lara, Laura,
Layla, Leah, Lena, Lila, Lily, Lola, Lucia, Lulu, Luna, Mabel, Maya, Mei, Mia, Mila, Mina, Mira,
Molly, Nadia, Naomi, Nell, Nina, Nora, Olga, Olive, Olivia, Paula, Pearl, Penny, Petra, Phoebe,
Polly, Priya, Rita, Rosie, Ruby, Ruth, Sadie, Sally, Sara, Selma, Sofia, Stella, Susan, Tara, Tess,
Tilly, Tina, Uma, Vera, Violet, Wanda, Willa, Yara, Zara, Zoe
class boy name
Aaron, Adam, Alan, Albert, Alex, Ali, Amir, Andy, Anton, Arlo, Arthur, Ben, Benny, Billy, Bobby,
Boris, Bruno, Caleb, Carl, Charlie, Chen, Cody, Cole, Colin, Conor, Daniel, Danny, David, Dean,
Diego, Dylan, Eddie, Edgar, Eli, Elias, Emil, Eric, Ethan, Evan, Felix, Finn, Frank, Freddie, Gabe,
George, Gus, Hal, Harry, Harvey, Hassan, Henry, Hugo, Ian, Igor, Isaac, Ivan, Jack, Jacob, Jake,
James, Jasper, Jay, Joe, Joel, John, Jonah, Jordan, Josh, Juan, Karim, Kai, Ken, Kevin, Kofi, Lars,
Leo, Levi, Liam, Linus, Logan, Louis, Luca, Luis, Luke, Marco, Mario, Mark, Martin, Mateo, Matt,
Max, Milo, Nate, Ned, Neil, Nico, Noah, Oliver, Omar, Oscar, Otis, Otto, Owen, Paul, Pedro, Peter,
Philip, Quinn, Rafi, Raj, Ralph, Ravi, Ray, Remy, Robin, Roger, Rory, Rufus, Ryan, Sam, Samir, Seth,
Simon, Stefan, Sunil, Teddy, Theo, Thomas, Tim, Toby, Tom, Tommy, Tony, Victor, Walter, Will, Yusuf,
Zach
class critter_he name
Acorn, Bramble, Biscuit, Bumble, Burdock, Chestnut, Cricket, Digger, Dusty, Fennel, Fern, Flicker,
Ginger, Hickory, Hobbs, Jumper, Juniper, Moss, Mumble, Nibbles, Nutmeg, Oakley, Patch, Pebble,
Pepper, Pickle, Pip, Pogo, Puddle, Quill, Rusty, Scamper, Scout, Snuggle, Sorrel, Spike, Sprout,
Stubby, Tumble, Twig, Waddle, Whistle, Wiggle, Wink, Zigzag
class critter_she name
Amber, Apricot, Blossom, Bluebell, Buttercup, Cherry, Cinnamon, Clover, Coco, Dandelion, Dapple,
Dewdrop, Fluff, Freckle, Hazelnut, Heather, Honey, Lavender, Maple, Marigold, Mimi, Minty, Mitten,
Misty, Mossy, Olivine, Peaches, Petal, Poppy, Primrose, Raindrop, Rosebud, Rosemary, Saffron,
Snowdrop, Sunny, Thistle, Tulip, Twinkle, Vanilla, Velvet, Wisteria, Willow
class pet_he name
Bandit, Barney, Buddy, Button, Captain, Domino, Duke, Fuzzy, Jojo, Marble, Mister Whiskers, Muffin,
Nugget, Peanut, Pumpkin, Ranger, Rocket, Rover, Smoky, Snowball, Socks, Toast, Waffles, Ziggy
class pet_she name
Angel, Bubbles, Caramel, Cleo, Cookie, Dolly, Duchess, Fifi, Fluffy, Goldie, Jelly, Ladybug, Lucky,
Missy, Mocha, Nutty, Pebbles, Princess, Queenie, Sandy, Sugar, Taffy, Tinkerbell, Trixie
class neighbor_he.child name
Mr. Abbott, Mr. Baker, Mr. Barnes, Mr. Brown, Mr. Cooper, Mr. Finch, Mr. Fields, Mr. Fisher, Mr.
Gardner, Mr. Grant, Mr. Hill, Mr. Hopper, Mr. Jensen, Mr. Kim, Mr. Larkin, Mr. Lopez, Mr. Mills, Mr.
Moreno, Mr. Novak, Mr. Parker, Mr. Pine, Mr. Potter, Mr. Reed, Mr. Rossi, Mr. Silva, Mr. Snow, Mr.
Stone, Mr. Tanaka, Mr. Wells
class neighbor_she.child name
Mrs. Abbott, Mrs. Appleby, Mrs. Bell, Mrs. Bloom, Mrs. Brook, Mrs. Carter, Mrs. Chang, Mrs. Clay,
Mrs. Dale, Mrs. Diaz, Mrs. Fields, Mrs. Garcia, Mrs. Green, Mrs. Hart, Mrs. Hopper, Mrs. Kumar, Mrs.
Lake, Mrs. Lopez, Mrs. Meadows, Mrs. Nilsen, Mrs. Park, Mrs. Patel, Mrs. Plum, Mrs. Rivera, Mrs.
Singh, Mrs. Taylor, Mrs. Winter
class neighbor_he.animal name
Old Badger, Old Beaver, Old Bear, Mr. Heron, Mr. Toad, Mr. Turtle, Mr. Raven, Mr. Goat, Mr. Walrus,
Mr. Elk
class neighbor_she.animal name
Mrs. Owl, Mrs. Goose, Mrs. Hen, Mrs. Crane, Mrs. Tortoise, Mrs. Magpie, Mrs. Deer, Mrs. Sheep, Mrs.
Pigeon
class kin_he fields of kin
Dad | Dad's | dad
Dad | Dad's | dad
Dad | Dad's | dad
Grandpa | Grandpa's | grandpa
Grandpa | Grandpa's | grandpa
Uncle Albie | Uncle Albie's | uncle
Uncle Bert | Uncle Bert's | uncle
Uncle Jim | Uncle Jim's | uncle
Uncle Pete | Uncle Pete's | uncle
class kin_she fields of kin
Mom | Mom's | mom
Mom | Mom's | mom
Mom | Mom's | mom
Grandma | Grandma's | grandma
Grandma | Grandma's | grandma
Aunt Dot | Aunt Dot's | aunt
Aunt Jo | Aunt Jo's | aunt
Aunt Maggie | Aunt Maggie's | aunt
Aunt Rosa | Aunt Rosa's | aunt
class parent_he fields of kin
Dad | Dad's | dad
class parent_she fields of kin
Mom | Mom's | mom
class grand_he fields of kin
Grandpa | Grandpa's | grandpa
class grand_she fields of kin
Grandma | Grandma's | grandma
class teacher_he fields of kin
Mr. Adler | Mr. Adler's | teacher
Mr. Bright | Mr. Bright's | teacher
Mr. Costa | Mr. Costa's | teacher
Mr. Dawson | Mr. Dawson's | teacher
Mr. Quill | Mr. Quill's | teacher
class teacher_she fields of kin
Miss Amari | Miss Amari's | teacher
Miss Lark | Miss Lark's | teacher
Miss Maple | Miss Maple's | teacher
Miss Penrose | Miss Penrose's | teacher
Miss Summers | Miss Summers's | teacher
class critter word
fox, rabbit, squirrel, mouse, badger, hedgehog, otter, beaver, bear cub, raccoon, mole, chipmunk,
hamster, porcupine, skunk, weasel, kitten, puppy, wolf cub, fawn, dormouse, marmot, ferret, hare,
shrew, opossum, koala, panda cub, wombat, lynx cub, meerkat, gopher, woodchuck, vole, pine marten,
lemur, red panda
class age word
four, five, six, seven, eight, nine
class trait word
kind, daring, graceful, modest, tidy, witty, charming, easygoing, affectionate, attentive, bubbly,
calm, neat, respectful, lighthearted, trusting, tender, curious, cheerful, clever, gentle, quiet,
lively, playful, thoughtful, careful, funny, friendly, honest, patient, dreamy, helpful, polite,
eager, merry, sweet, bright, hopeful, loving, caring, adventurous, imaginative, energetic, smart,
good-natured, spirited, generous, loyal, sensible, warm-hearted, joyful, talkative
class glad word
happy, glad, cheerful, joyful, delighted, pleased, thrilled, overjoyed
class excited word
excited, eager, thrilled, delighted, so happy
class proud word
proud, proud, pleased, happy
class sad word
sad, unhappy, upset, gloomy, miserable, downhearted, sorrowful, glum, discouraged
class worried word
worried, nervous, anxious, uneasy, troubled
class afraid word
afraid, scared, frightened, nervous
class tired word
tired, sleepy, weary, drowsy, worn out
class surprised word
surprised, amazed, astonished, very surprised
class gladly word
happily, cheerfully, gladly, merrily, joyfully, brightly, proudly, eagerly
class softly word
softly, gently, quietly, kindly, warmly, tenderly, calmly, sweetly
class sadly word
sadly, quietly, slowly, glumly, unhappily
class carefully word
carefully, slowly, gently, patiently, gingerly, softly
class quickly word
quickly, swiftly, at once, right away, hurriedly, without waiting
class job word
baker, farmer, sailor, doctor, nurse, teacher, painter, dancer, singer, pilot, gardener, carpenter,
firefighter, fisherman, musician, cook, mail carrier, train driver, librarian, astronaut, scientist,
explorer, vet, clown, builder, potter, shepherd, tailor, juggler, inventor, writer, zookeeper,
beekeeper, shoemaker, clockmaker, plumber, painter of ships, blacksmith, acrobat, magician, poet,
judge, detective, photographer, weaver, miller, mountain guide, lifeguard, dentist, engineer,
drummer, conductor, barber, ranger, locksmith, bookbinder, puppeteer, diver, archaeologist,
mathematician, journalist, chef, florist, jeweler, knight, glassblower
)";

}  // namespace flashstep
