"""How the shipped model was made: data, recipe, training, card. Not part of the installed package."""
